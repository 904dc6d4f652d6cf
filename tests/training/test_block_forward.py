"""Recomputed, compiled and plain layers give the same numbers; what is computed again; how many
graphs rows of many lengths make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.training import Actor
from agentrl.training.data.packing import PackedMicroBatches
from agentrl.training.models import trunk
from agentrl.training.models.trunk import rounded_length
from agentrl.types import SegmentKind
from tests.training.harness import gradients, make_actor, make_batch, update, update_shards

BATCH = make_batch(kind=SegmentKind.TARGET)


def numbers(model_path: str, **spec: Any) -> tuple[float, dict[str, Tensor]]:
    """The loss of an update in float64, and its gradient."""
    actor = make_actor(model_path, "sft", dtype="float64", **spec)
    loss = update(actor, BATCH, 30)["policy/loss"].mean
    return loss, gradients(actor)


def same(found: tuple[float, Mapping[str, Tensor]], expected: Any) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-10)
    for name, gradient in expected[1].items():
        assert (found[1][name] - gradient).abs().max() <= 1e-10, name


@pytest.fixture(scope="module")
def expected(model_path: str) -> tuple[float, dict[str, Tensor]]:
    return numbers(model_path)


@pytest.mark.parametrize("recompute", [True, "selective"])
def test_recomputed_layers_give_the_same_numbers(
    model_path: str, expected: Any, recompute: Any
) -> None:
    same(numbers(model_path, gradient_checkpointing=recompute), expected)


class Products(TorchDispatchMode):
    """Counts matrix products and attention kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(func)
        if name in trunk._PRODUCTS:
            self.found["products"] += 1
        if name in trunk._KEPT:
            self.found["attention"] += 1
        return func(*args, **(kwargs or {}))


def test_selective_computes_every_second_product_and_no_attention_again(
    model_path: str,
) -> None:
    """A layer of a Qwen3 has 7 products, of which the 2nd, 4th and 6th are made again."""
    backward = {}
    for recompute in (False, True, "selective"):
        actor = make_actor(model_path, "sft", gradient_checkpointing=recompute)
        actor.backend.model.skips_mlp_rows = False
        shard = update_shards(actor, BATCH, 200, 1)[0]
        (packed,) = actor.packed(shard)
        logprobs, _ = actor.backend.model(packed)
        with Products() as counted:
            logprobs.sum().backward()
        backward[recompute] = counted.found
    samples = BATCH.num_samples
    layers = 2
    assert backward[False]["attention"] == 0
    # the end of a recomputation is left out once nothing of it is needed: the last product
    assert backward[True]["products"] - backward[False]["products"] == 6 * layers
    assert backward[True]["attention"] == samples * layers
    assert backward["selective"]["products"] - backward[False]["products"] == 3 * layers
    assert backward["selective"]["attention"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "recompute"), [("fsdp2", True), ("plain", False)])
def test_compiled_layers_give_the_same_numbers_in_few_graphs(
    model_path: str,
    expected: Any,
    monkeypatch: pytest.MonkeyPatch,
    backend: Any,
    recompute: bool,
) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(trunk, "COMPILER", counter)
    actor = make_actor(
        model_path,
        "sft",
        dtype="float64",
        compile=True,
        backend=backend,
        gradient_checkpointing=recompute,
    )
    if backend == "fsdp2":
        loss = update(actor, BATCH, 30)["policy/loss"].mean
        same((loss, gradients(actor)), expected)
    lengths = graphs_of(actor, counter)
    assert lengths == {64, 128}


def graphs_of(actor: Actor, counter: Any) -> set[int]:
    """Row lengths of updates on rows of many numbers of tokens, each of which adds its graphs at
    most once."""
    lengths: dict[int, int] = {}
    for tokens in (30, 64, 70, 112, 33):
        parts = [tokens // 2, tokens - tokens // 2]
        batch = make_batch(parts, rollouts=2, kind=SegmentKind.TARGET)
        shard = update_shards(actor, batch, 200, 1)[0]
        (packed,) = actor.packed(shard)
        before = counter.frame_count
        update(actor, batch, 200)
        length = packed.token_ids.numel()
        made = counter.frame_count - before
        if length in lengths:
            assert made == 0, f"a row of {tokens} tokens made {made} graphs more"
        lengths[length] = made
    return set(lengths)


def test_rows_are_rounded_up_to_eight_lengths_an_octave() -> None:
    assert [rounded_length(tokens) for tokens in (1, 64, 65, 1000, 8192, 8193)] == [
        *(64, 64, 128, 1024, 8192, 9216),
    ]
    assert len({rounded_length(tokens) for tokens in range(8193, 16385)}) == 8
    assert max(rounded_length(tokens) / tokens for tokens in range(512, 20000)) < 1.126


def test_a_filler_is_a_sample_that_nothing_is_asked_of(model_path: str) -> None:
    actor = make_actor(model_path, "sft")
    shard = update_shards(actor, BATCH, 200, 1)[0]
    (whole,) = actor.packed(shard)
    (filled,) = PackedMicroBatches(
        shard, actor.device, share_prefixes=True, length_of=rounded_length
    )
    assert filled.spans[:-1] == whole.spans
    assert filled.token_ids.numel() == rounded_length(whole.token_ids.numel()) == 128
    assert filled.spans[-1].size == 128 - whole.token_ids.numel()
    assert filled.rows.tolist() == whole.rows.tolist()
    assert torch.equal(filled.logit_rows, whole.logit_rows)
