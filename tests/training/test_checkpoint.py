"""Checkpoints go on exactly, and a corrupt one is refused by name; exports are ordinary Hugging
Face folders.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.errors import CheckpointError, StoreError
from agentrl.training import OptimSpec
from agentrl.types import SegmentKind
from tests.training.harness import make_actor, make_batch, update, write_model

MUON = OptimSpec(name="muon", lr=2e-3, schedule="cosine", warmup_steps=2)


@pytest.mark.parametrize(
    "optim", [OptimSpec(lr=1e-3, warmup_steps=6), MUON], ids=["adamw", "muon"]
)
def test_a_resumed_actor_gives_the_same_losses_to_the_last_digit(
    model_path: str, tmp_path: Path, optim: OptimSpec
) -> None:
    batch = make_batch(kind=SegmentKind.TARGET)
    actor = make_actor(model_path, "sft", optim=optim, total_steps=8)
    for _ in range(3):
        update(actor, batch)
    actor.save(tmp_path / "actor")
    uninterrupted = [dict(update(actor, batch)) for _ in range(3)]
    resumed = make_actor(model_path, "sft", optim=optim, total_steps=8)
    resumed.load(tmp_path / "actor")
    assert [dict(update(resumed, batch)) for _ in range(3)] == uninterrupted
    assert resumed.checksum() == actor.checksum()


def test_saving_before_the_first_step_changes_nothing(
    model_path: str, tmp_path: Path
) -> None:
    batch = make_batch(kind=SegmentKind.TARGET)
    saved, plain, loaded = (make_actor(model_path, "sft") for _ in range(3))
    saved.save(tmp_path / "actor")
    loaded.load(tmp_path / "actor")
    for actor in (saved, plain, loaded):
        update(actor, batch)
        update(actor, batch)
    assert saved.checksum() == plain.checksum() == loaded.checksum()


def truncate(folder: Path) -> str:
    path = next(folder.glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:-100])
    return path.name


def remove(folder: Path) -> str:
    path = next(folder.glob("*.distcp"))
    path.unlink()
    return path.name


def flip_a_bit(folder: Path) -> str:
    path = next(folder.glob("*.distcp"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path.name


def never_finish(folder: Path) -> str:
    (folder / "files.json").unlink()
    return "files.json"


def cut_the_listing(folder: Path) -> str:
    path = folder / "files.json"
    path.write_text(path.read_text()[:20])
    return path.name


@pytest.mark.parametrize(
    "tear", [truncate, remove, flip_a_bit, never_finish, cut_the_listing]
)
def test_a_corrupt_checkpoint_is_refused_by_its_file(
    model_path: str, tmp_path: Path, tear: Callable[[Path], str]
) -> None:
    actor = make_actor(model_path, "sft")
    update(actor, make_batch(kind=SegmentKind.TARGET))
    actor.save(tmp_path / "actor")
    name = tear(tmp_path / "actor")
    with pytest.raises(
        CheckpointError, match=rf"{name}.*corrupt; resume from an older checkpoint"
    ):
        actor.load(tmp_path / "actor")


def test_a_checkpoint_is_never_written_over(model_path: str, tmp_path: Path) -> None:
    actor = make_actor(model_path, "sft")
    actor.save(tmp_path)
    with pytest.raises(StoreError, match="holds a checkpoint already"):
        actor.save(tmp_path)


def test_another_models_checkpoint_is_refused(model_path: str, tmp_path: Path) -> None:
    make_actor(model_path, "sft").save(tmp_path / "actor")
    other = make_actor(
        str(write_model(tmp_path / "model", tie_word_embeddings=False)), "sft"
    )
    with pytest.raises(
        StoreError,
        match=r"another model or optimizer: 'model\.hf\.lm_head\.weight' is missing",
    ):
        other.load(tmp_path / "actor")


def test_an_export_loads_anywhere_with_equal_weights(
    model_path: str, tmp_path: Path
) -> None:
    actor = make_actor(model_path, "sft")
    update(actor, make_batch(kind=SegmentKind.TARGET))
    actor.export(tmp_path / "export")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32)
    exported = dict(model.named_parameters())
    published = dict(actor.weights())
    assert published.keys() == exported.keys()
    assert all(torch.equal(published[name], exported[name]) for name in published)
    assert (tmp_path / "export" / "tokenizer.json").is_file()


def test_an_export_never_overwrites_its_source(model_path: str) -> None:
    with pytest.raises(StoreError, match="the folder that the model was loaded from"):
        make_actor(model_path, "sft").export(model_path)


def test_a_tied_weight_is_published_once(model_path: str) -> None:
    names = [name for name, _ in make_actor(model_path, "sft").weights()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_weights_are_published_in_the_served_dtype(model_path: str) -> None:
    assert {
        tensor.dtype for _, tensor in make_actor(model_path, "sft").weights("bfloat16")
    } == {torch.bfloat16}
