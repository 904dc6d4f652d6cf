"""Every layout of the Megatron backend has plain's loss, gradients, weights and checksums, and its
checkpoint goes on in another layout and backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import StoreError
from agentrl.training import DistSpec, OptimSpec, join, leave
from tests.tiny_models import write_family
from tests.training.cuda_stand_in import cuda_stand_in
from tests.training.harness import VOCAB, make_actor, make_batch, prepared, update
from tests.training.ranks import run_ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
pytestmark = pytest.mark.slow

MODELS = {"qwen3": True, "qwen2": False}
"""By family: whether embedding and output layer are one."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, dict[str, Any]]]:
    """A model of each family, its batch, and what plain makes of it."""
    found = {}
    join(DistSpec())
    for family, is_tied in MODELS.items():
        folder = tmp_path_factory.mktemp(family)
        write_family(folder, family, vocab_size=VOCAB, tie_word_embeddings=is_tied)
        plain = make_actor(str(folder), backend="plain")
        # a sample of one token, and micro-batches whose rows differ
        batch = prepared(plain, make_batch((13, 1, 21, 6, 17, 2, 5, 30), temperature=0.9))
        torch.save(batch, folder / "batch.pt")
        stats = dict(update(plain, batch, 30).means())
        (optimizer,) = plain.backend.optimizers  # type: ignore[attr-defined]
        gradients = {
            name.removeprefix("hf."): optimizer.state[one]["exp_avg"]
            for name, one in plain.backend.state().items()
        }
        weights = {name: one.clone() for name, one in plain.weights("float32")}
        found[family] = folder, {"stats": stats, "gradients": gradients, "weights": weights}
    leave()
    return found


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize(
    ("size", "tp", "pp"), [(2, 1, 1), (2, 2, 1), (2, 1, 2), (4, 2, 2), (4, 1, 2), (4, 2, 1)]
)
def test_a_layout_has_the_numbers_of_plain(
    models: Any, family: str, size: int, tp: int, pp: int
) -> None:
    folder, expected = models[family]
    arguments = (str(folder), str(folder), str(tp), str(pp))
    run_ranks("tests.training.megatron_rank", size, *arguments)
    found = torch.load(folder / f"world-{size}-{tp}-{pp}.pt", weights_only=False)
    for name in ("policy/loss", "optim/grad_norm", "policy/entropy"):
        value = expected["stats"][name]
        assert found["stats"][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    gradients = expected["gradients"]
    whole = max(float(one.abs().max()) for one in gradients.values())
    assert found["gradients"].keys() == gradients.keys()
    for name, gradient in gradients.items():
        size_of = max(float(gradient.abs().max()), 1e-3 * whole)
        error = float((found["gradients"][name] - gradient).abs().max())
        assert error < 1e-5 * size_of, name
    assert found["weights"].keys() == expected["weights"].keys() == found["sums"].keys()
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=0, atol=1e-5)


def test_a_checkpoint_of_2_x_2_goes_on_alone_and_in_fsdp2(models: Any, tmp_path: Path) -> None:
    folder, _ = models["qwen3"]
    saved = folder / "saved-4-2-2"
    if not saved.exists():
        run_ranks("tests.training.megatron_rank", 4, str(folder), str(folder), "2", "2")
    written = torch.load(folder / "world-4-2-2.pt", weights_only=False)
    batch = torch.load(folder / "batch.pt", weights_only=False)
    with cuda_stand_in():
        optim = OptimSpec(lr=1e-4)
        alone = make_actor(str(folder), optim=optim, backend="megatron")
        alone.load(saved)
        assert alone.checksum("float32") == written["sums"]
        alone.save(tmp_path / "alone")
        fsdp2 = make_actor(str(folder), optim=optim, backend="fsdp2")
        fsdp2.load(tmp_path / "alone")
        assert fsdp2.steps == alone.steps == 1
        for one in (alone, fsdp2):
            update(one, batch, 30)
        found = dict(fsdp2.weights("float32"))
        for name, weight in alone.weights("float32"):
            torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6)


def test_another_optimizer_is_refused_before_anything_is_loaded(
    model_path: str, tmp_path: Path
) -> None:

    muon = make_actor(model_path, optim=OptimSpec(name="muon"), backend="fsdp2")
    update(muon, prepared(muon, make_batch()))
    muon.save(tmp_path / "muon")
    with cuda_stand_in():
        own = make_actor(model_path, backend="megatron")
        before = own.checksum("float32")
        with pytest.raises(StoreError, match=r"cannot be resumed under .*megatron"):
            own.load(tmp_path / "muon")
        assert own.checksum("float32") == before
