"""What cannot be trained of a model that sees is refused by name."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms import make_algorithm
from agentrl.errors import ConfigError, DataError
from agentrl.training import (
    Critic,
    CriticSpec,
    DistSpec,
    RewardModel,
    RewardModelSpec,
    join,
)
from agentrl.training.backends.megatron.support import check_model
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.parallel.process_group import Sharding
from tests.tiny_vision import FAMILIES, write_qwen_vl
from tests.training.vision_batch import make_actor, make_case
from tests.whole_models import load_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("vl"), family="qwen3_vl")


def changed(model: Path, folder: Path, name: str, **values: Any) -> Path:
    """The folder with other values in one of its files."""
    for path in model.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def test_another_family_is_named_with_those_that_are_trained(
    model: Path, tmp_path: Path
) -> None:
    other = changed(model, tmp_path, "config.json", model_type="qwen2_vl")
    with pytest.raises(
        ConfigError, match="qwen2_5_vl, qwen3_vl can be trained, got 'qwen2_vl'"
    ):
        load_policy(ModelSpec(str(other)))


def test_critics_and_reward_models_read_text(model: Path) -> None:
    place = DistSpec()
    join(place)
    told = "a critic or a reward model reads text alone"
    with pytest.raises(ConfigError, match=told):
        Critic(CriticSpec(str(model), make_algorithm("ppo"), head_seed=1), place)
    with pytest.raises(ConfigError, match=told):
        RewardModel(RewardModelSpec(str(model)), place)


@pytest.mark.parametrize(
    ("place", "spec", "told"),
    [
        ({"tp": 2}, {}, r"PlacementConfig\.tp_size=2"),
        ({"sp": 2}, {}, r"PlacementConfig\.sp_size=2"),
        ({}, {"sharding": Sharding(ep=2)}, r"TrainConfig\.ep_size=2"),
        (
            {"tp": 2},
            {"compile": True},
            r"PlacementConfig\.tp_size=2, TrainConfig\.compile=True; leave that out",
        ),
    ],
)
def test_what_divides_or_compiles_the_model_is_refused(
    place: Mapping[str, int],
    spec: Mapping[str, Any],
    told: str,
    model: Path,
    tmp_path: Path,
) -> None:
    join(DistSpec())
    whole = replace(DistSpec(), **place)
    with pytest.raises(ConfigError, match=told):
        make_actor(model, tmp_path, whole, **spec)


def test_megatron_computes_no_model_that_sees(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"computes models of .* got 'qwen3_vl'"):
        check_model(ModelSpec(str(model), backend="megatron"), DistSpec())


def test_a_model_of_text_has_no_tower_to_train(model_path: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"TrainConfig\.vision='trained' moves the tower .*reads text alone",
    ) as error:
        load_policy(ModelSpec(model_path, vision="trained"))
    assert model_path in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("layer", "told"),
    [
        ("Vision(Transformer.*)?Model", r"(\d+) of its \1 tensors, such as patch_embed\."),
        ("VisionPatchEmbed", r"\d of its \d\d tensors, such as patch_embed\."),
    ],
)
def test_a_tower_that_no_gradient_reaches_is_frozen_or_refused(
    layer: str, told: str, family: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_qwen_vl(tmp_path, family=family)
    load_policy(ModelSpec(str(folder), vision="trained"))
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    (kind,) = (
        one for name, one in vars(module).items() if re.fullmatch(f"Qwen.*{layer}", name)
    )
    monkeypatch.setattr(kind, "forward", torch.no_grad()(kind.forward))
    with pytest.raises(
        ConfigError, match=rf"no gradient reaches {told}.* leave it frozen"
    ) as error:
        load_policy(ModelSpec(str(folder), vision="trained"))
    assert str(folder) in str(error.value)
    load_policy(ModelSpec(str(folder)))


def test_an_adapter_of_the_tower_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="must name layers that can have an adapter, got 'qkv'"
    ):
        make_actor(
            model, tmp_path, backend="plain", lora=LoraSpec(rank=4, targets=("qkv",))
        )


def test_a_processor_of_another_tower_is_refused(model: Path, tmp_path: Path) -> None:
    other = changed(model, tmp_path, "preprocessor_config.json", patch_size=16)
    with pytest.raises(ConfigError, match=r"has patch_size=16, and the tower .* reads 14"):
        load_policy(ModelSpec(str(other)))


@pytest.mark.parametrize("more", [1, -1])
def test_more_or_fewer_placeholders_than_tokens_are_named(
    more: int, model: Path, tmp_path: Path
) -> None:
    case = make_case(model, tmp_path)
    batch = case.batch
    media = batch.media.copy()
    media["num_tokens"][0] += more
    shard = case.shard((0,), (0,))
    wrong = replace(shard, batch=replace(batch, media=media).select(shard.samples))
    actor = make_actor(model, tmp_path, backend="plain")
    told = f"image {media['sha256'][0]} has {6 + more} placeholders .* makes 6 tokens of it"
    with pytest.raises(DataError, match=told):
        actor.logprobs(wrong)
