"""Every layout of the Megatron backend has plain's loss, gradients, weights and checksums, and its
checkpoint goes on in another layout and backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.engines.checksum import tensor_checksum
from agentrl.training import DistSpec, OptimSpec, join, leave
from tests.tiny_models import write_family
from tests.training.cuda_stand_in import cuda_stand_in
from tests.training.harness import VOCAB, make_actor, make_batch, prepared, update
from tests.training.megatron_rank import BEGINNING
from tests.training.ranks import run_ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")
pytestmark = pytest.mark.slow

MODELS = {"qwen3": True, "qwen2": False, "llama": False, "qwen3_moe": False}
"""By family: whether embedding and output layer are one."""


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, tuple[Path, dict[str, Any]]]:
    """A model of each family, its batch, and what plain makes of it."""
    found = {}
    join(DistSpec())
    for family, is_tied in MODELS.items():
        folder = tmp_path_factory.mktemp(family)
        # a sample of one token, and of two data coordinates one has a row less
        batch = make_batch((30, 1, 29, 6, 17, 2, 5, 30), temperature=0.9)
        # an input too, of the second half of the vocabulary
        own = {"pad_token_id": int(batch.token_ids[batch.token_ids >= VOCAB // 2][0])}
        if family == "qwen3_moe":
            own["num_experts"] = 4
        write_family(folder, family, vocab_size=VOCAB, tie_word_embeddings=is_tied, **own)
        plain = make_actor(str(folder), backend="plain")
        batch = prepared(plain, batch)
        torch.save(batch, folder / "batch.pt")
        stats = dict(update(plain, batch, 30).means())
        (optimizer,) = plain.backend.optimizers  # type: ignore[attr-defined]
        gradients = {
            name.removeprefix("hf."): optimizer.state[one]["exp_avg"]
            for name, one in plain.backend.state().items()
        }
        weights = {name: one.clone() for name, one in plain.weights("float32")}
        names: Any = plain.backend.model.names  # type: ignore[attr-defined]
        of_weights: dict[str, torch.Tensor] = {}
        for group in names.groups:
            of_weights |= names.revert(
                group, {one: gradients[one] for one in group.parameters}
            )
        told = {"stats": stats, "gradients": gradients, "weights": weights}
        found[family] = folder, told | {"of_weights": of_weights}
    leave()
    return found


LAYOUTS = [(2, 1, 1), (2, 2, 1), (2, 1, 2), (4, 2, 2), (4, 1, 2), (4, 2, 1)]
"""Ranks, and of these how many hold a layer together and how many stages there are."""


def world(
    models: Any, family: str, size: int, tp: int, pp: int
) -> tuple[Path, dict[str, Any]]:
    """The folder of a family, and what the ranks of a layout told; they run once for all layouts of
    a size."""
    folder = models[family][0]
    told = folder / f"world-{size}-{tp}-{pp}.pt"
    if not told.exists():
        layouts = [one[1:] for one in LAYOUTS if one[0] == size]
        cases = [f"{models[one][0]}:{t}:{p}" for t, p in layouts for one in MODELS]
        run_ranks("tests.training.megatron_rank", size, *cases)
    return folder, torch.load(told, weights_only=False)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize(("size", "tp", "pp"), LAYOUTS)
def test_a_layout_has_the_numbers_of_plain(
    models: Any, family: str, size: int, tp: int, pp: int
) -> None:
    expected = models[family][1]
    _, found = world(models, family, size, tp, pp)
    # of two data coordinates all ranks of one have a filler, of one none
    fillers = [own["fillers"] for own in found["ranks"]]
    assert sorted(fillers) == [0] * (size // 2) + [size == 2 * tp * pp] * (size // 2)
    routed = [name for name in expected["stats"] if name.startswith("moe/")]
    for name in ("policy/loss", "optim/grad_norm", "policy/entropy", *routed):
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
        # AdamW divides by the gradient's size: near its epsilon, 1e-8, rounding moves a weight
        moved = expected["of_weights"][name].abs() > 1e-6
        own = found["weights"][name]
        torch.testing.assert_close(own[moved], weight[moved], rtol=0, atol=1e-5)


def test_a_checkpoint_of_2_x_2_goes_on_alone_and_in_fsdp2(
    models: Any, tmp_path: Path
) -> None:
    folder, written = world(models, "qwen3", 4, 2, 2)
    saved = folder / "saved-4-2-2"
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


def test_engines_beside_2_x_2_get_the_folders_bits_and_no_byte_twice(models: Any) -> None:
    folder, found = world(models, "qwen3", 4, 2, 2)
    ranks = found["ranks"]
    written = load_file(folder / "exported-4-2-2" / "model.safetensors")
    sums = {name: tensor_checksum(name, tensor) for name, tensor in written.items()}
    assert [own["engine"] == sums for own in ranks] == [True] * 4
    # Numbers of the whole, by hand: of a layer the queries and the output 32 x 32 each, keys and
    # values 16 x 32 each, the MLP 3 x 48 x 32: 7,680; its norms 32 + 32 + 8 + 8 = 80. Two layers,
    # the embedding 96 x 32 = 3,072, which is the output layer too, and the last norm, 32.
    whole = 3072 + 2 * (7680 + 80) + 32
    assert whole == 18_624
    assert [own["whole"] for own in ranks] == [4 * whole] * 4
    # A rank holds half of its stage's matrices and of the embedding, which both stages have, and
    # the norms of its stage; it is sent the rest, of each number once: the other stage's, and what
    # the rank beside it holds. Without stages it would hold half of both layers, and be sent
    # 18,624 - (1,536 + 7,680 + 192) = 9,216: reading through them costs 3,952 and 3,920 numbers.
    first, last = 1536 + 3840 + 80, 1536 + 3840 + 80 + 32
    received = [whole - first] * 2 + [whole - last] * 2
    assert received == [13_168, 13_168, 13_136, 13_136]
    assert [own["received"] for own in ranks] == [4 * one for one in received]


@pytest.mark.parametrize(
    ("family", "size", "tp", "pp"),
    [("qwen3", 2, 1, 2), ("qwen2", 4, 2, 2), ("qwen3_moe", 4, 2, 2)],
)
def test_transformers_loads_an_export_of_stages_with_their_logits(
    models: Any, family: str, size: int, tp: int, pp: int
) -> None:
    folder, told = world(models, family, size, tp, pp)
    exported: Any = AutoModelForCausalLM.from_pretrained(
        folder / f"exported-{size}-{tp}-{pp}"
    )
    with torch.no_grad():
        logits = exported(torch.tensor([BEGINNING])).logits[0, -1]
    # of the whole vocabulary, so that the logits are equal but for what is added to all
    torch.testing.assert_close(
        told["ranks"][-1]["logprobs"], logits.log_softmax(-1), rtol=0, atol=1e-5
    )
