"""What a role publishes, compares and exports has the names and the bits of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.core_model_loading import Concatenate

from agentrl.engines.checksum import tensor_checksum
from agentrl.errors import ConfigError, DataError
from agentrl.training.fsdp.checkpoint_export import export_checkpoint
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.policy_model import open_policy
from tests.tiny_models import FAMILIES, write_family
from tests.training.harness import VOCAB, make_actor, write_model


def tensors_of(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_go_round_bit_by_bit(tmp_path: Path, family: str) -> None:
    folder = write_family(tmp_path / "folder", family, vocab_size=VOCAB)
    stored = tensors_of(folder)
    actor = make_actor(str(folder), "sft")
    published = dict(actor.weights())
    buffers = {name for name in stored if name.endswith("e_score_correction_bias")}
    assert published.keys() == stored.keys() - buffers
    assert all(torch.equal(published[name], stored[name]) for name in published)
    assert actor.checksum() == {
        name: tensor_checksum(name, tensor) for name, tensor in published.items()
    }
    actor.export(tmp_path / "exported")
    actor.save(tmp_path / "saved")
    export_checkpoint(tmp_path / "saved", tmp_path / "whole")
    export_checkpoint(tmp_path / "saved", tmp_path / "cut", shard_bytes=20_000)
    for written in ("exported", "whole", "cut"):
        again = tensors_of(tmp_path / written)
        assert again.keys() == stored.keys()
        assert all(torch.equal(again[name], stored[name]) for name in stored)


def test_a_conversion_without_a_way_back_is_refused_when_the_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_family(tmp_path / "folder", "qwen3_moe", vocab_size=VOCAB)

    def reverse_op(_: Any) -> Any:
        raise NotImplementedError("no way back")

    monkeypatch.setattr(Concatenate, "reverse_op", property(reverse_op))
    message = (
        r"ActorSpec\.model_path=.*transformers cannot write the weights of Qwen3MoeForCausalLM as "
        r"their folder holds them \(NotImplementedError\('no way back'\)\); choose another family"
    )
    with pytest.raises(ConfigError, match=message):
        open_policy(ModelSpec(str(folder)))


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "folder", "qwen3_moe", vocab_size=VOCAB)
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    tensors = tensors_of(folder)
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        DataError, match=r"gate_up_proj is made of .*2\.up_proj.*, which is missing"
    ):
        make_actor(str(folder), "sft")


def test_a_folder_without_the_trunks_prefix_trains(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    tensors = tensors_of(folder)
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    published = dict(make_actor(str(folder), "sft").weights())
    assert published.keys() == tensors.keys()
    assert all(torch.equal(published[name], tensors[name]) for name in tensors)
