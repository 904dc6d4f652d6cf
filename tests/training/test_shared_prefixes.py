"""Samples that begin alike: what they share is computed once, and no number tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from agentrl.training import shards
from agentrl.training.data.packing import Packed, PackedMicroBatches
from agentrl.training.data.partition import partition
from agentrl.training.data.pieces import SharedSizes
from agentrl.training.data.prefix_tree import ROOT, Span, shared_spans
from agentrl.training.models import policy_model
from agentrl.training.models.packed_model import ModelSpec
from agentrl.types import Batch, BatchShard
from tests.tiny_models import SLIDING
from tests.training.harness import (
    gradients,
    layout,
    make_actor,
    make_batch,
    make_siblings,
    prefixes,
    prepared,
    update,
    write_model,
)
from tests.whole_models import load_policy


def whole_shard(batch: Batch, micro_batch_tokens: int = 1000) -> BatchShard:
    (plan,) = partition(
        batch.lengths,
        batch.group[batch.trajectory],
        seed=0,
        layout=layout(1, micro_batch_tokens),
    )
    (shard,) = shards(batch, plan)
    return shard


def packed(batch: Batch, *, share_prefixes: bool = True) -> Packed:
    (row,) = PackedMicroBatches(
        whole_shard(batch), torch.device("cpu"), share_prefixes=share_prefixes
    )
    return row


def outcome(
    model_path: str, batch: Batch, *, share_prefixes: bool
) -> tuple[npt.NDArray[np.float32], dict[str, torch.Tensor]]:
    """Logprobs by token, and the gradient of a sum of them with different weights."""
    model = load_policy(ModelSpec(model_path))
    row = packed(batch, share_prefixes=share_prefixes)
    logprobs, _ = model(row)
    weights = torch.from_numpy(np.cos(row.source).astype(np.float32))
    (logprobs * weights).sum().backward()
    column = np.zeros(batch.num_tokens, dtype=np.float32)
    column[row.source] = logprobs.detach().numpy()
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return column, gradient


def with_turns_in_common(batch: Batch) -> Batch:
    """Three samples of a group have a trained turn in common, and in the other group one begins as
    another is.
    """
    ids, mask = batch.token_ids.copy(), batch.loss_mask.copy()
    starts = batch.cu_seqlens
    for column in (ids, mask):
        for start in starts[1:3]:
            column[start : start + 16] = column[starts[0] : starts[0] + 16]
        column[starts[5] : starts[5] + 19] = column[starts[4] : starts[4] + 19]
        column[starts[7] : starts[7] + 19] = column[starts[4] : starts[4] + 19]
    return replace(batch, token_ids=ids, loss_mask=mask)


def at_temperatures(batch: Batch) -> Batch:
    return replace(
        batch, temperature=np.linspace(0.6, 1.3, batch.num_samples, dtype=np.float32)
    )


def assert_close_to(gradient: torch.Tensor, found: torch.Tensor, name: str) -> None:
    """Up to the rounding of float32 sums, which is in proportion to the largest terms, not to each
    result.
    """
    torch.testing.assert_close(
        found, gradient, rtol=0.0, atol=2e-5 * gradient.abs().max().item(), msg=name
    )


def assert_same(model_path: str, batch: Batch) -> None:
    together, together_gradient = outcome(model_path, batch, share_prefixes=True)
    apart, apart_gradient = outcome(model_path, batch, share_prefixes=False)
    # 20 units in the last place of float32
    np.testing.assert_allclose(together, apart, atol=1e-5)
    assert together_gradient.keys() == apart_gradient.keys()
    for name, gradient in apart_gradient.items():
        assert_close_to(gradient, together_gradient[name], name)


@pytest.mark.parametrize(
    "batch",
    [
        make_siblings(),
        with_turns_in_common(make_siblings()),
        at_temperatures(with_turns_in_common(make_siblings())),
    ],
    ids=["prompts", "turns", "temperatures"],
)
def test_logprobs_and_gradients_are_those_of_samples_apart(
    model_path: str, batch: Batch
) -> None:
    assert_same(model_path, batch)


def test_logits_may_be_made_in_chunks(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = at_temperatures(with_turns_in_common(make_siblings()))
    whole, whole_gradient = outcome(model_path, batch, share_prefixes=True)
    monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", 7 * 200)
    chunked, chunked_gradient = outcome(model_path, batch, share_prefixes=True)

    # 20 units in the last place of float32
    np.testing.assert_allclose(chunked, whole, atol=1e-5)
    for name, gradient in whole_gradient.items():
        assert_close_to(gradient, chunked_gradient[name], name)


@pytest.mark.parametrize("micro_batch_tokens", [34, 62, 1000])
def test_the_gradient_does_not_depend_on_which_siblings_lie_together(
    model_path: str, micro_batch_tokens: int
) -> None:
    batch = prepared(make_actor(model_path), with_turns_in_common(make_siblings(16)))
    found = {}
    # a micro-batch of 30 tokens has room for one sample
    for tokens in (
        30,
        micro_batch_tokens,
    ):
        actor = make_actor(model_path)
        update(actor, batch, tokens)
        found[tokens] = gradients(actor)
    for name, gradient in found[30].items():
        assert (gradient - found[micro_batch_tokens][name]).abs().max() < 1e-6, name


def test_a_sliding_window_reaches_back_into_what_is_shared(tmp_path: Path) -> None:
    write_model(tmp_path, **SLIDING)
    assert_same(str(tmp_path), with_turns_in_common(make_siblings()))


def test_what_a_group_shares_lies_in_the_row_once() -> None:
    batch = make_siblings()
    shared, apart = packed(batch), packed(batch, share_prefixes=False)

    assert [span.size for span in shared.spans if span.parent == ROOT] == [6, 6]
    assert shared.token_ids.numel() == apart.token_ids.numel() - 3 * 6 * 2
    assert sum(span.size for span in shared.spans) == shared.token_ids.numel()
    assert apart.spans == tuple(
        Span(ROOT, 0, int(n)) for n in whole_shard(batch).batch.lengths
    )


def test_a_trained_token_in_common_is_in_the_row_once_and_trained_for_each() -> None:
    batch = with_turns_in_common(make_siblings())
    row = packed(batch)

    assert row.source.size == np.count_nonzero(batch.loss_mask)
    assert row.logit_rows.numel() < row.source.size
    assert row.token_ids.numel() < packed(make_siblings()).token_ids.numel()


def test_spans_of_samples_worked_by_hand() -> None:
    a, b, c = list(range(20)), list(range(20, 40)), list(range(40, 60))
    samples = [
        np.array(ids, dtype=np.int32) for ids in (a + b, a + c + [1], [7], a + c, a + c)
    ]
    spans, paths = shared_spans(samples)

    stem = spans.index(Span(ROOT, 0, 20))  # a, of all but one
    assert sorted(spans) == sorted(
        [
            Span(ROOT, 0, 1),
            Span(ROOT, 0, 20),
            Span(stem, 20, 20),
            Span(stem, 20, 20),
            Span(paths[3][-1], 40, 1),
        ]
    )
    assert [sum(spans[index].size for index in path) for path in paths] == [
        40,
        41,
        1,
        40,
        40,
    ]
    assert paths[3] == paths[4] == paths[1][:-1]


def test_spans_put_together_are_the_samples() -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        stems = [generator.integers(0, 3, size=generator.integers(1, 60)) for _ in range(3)]
        samples = [
            np.concatenate(
                [
                    stems[generator.integers(3)][: generator.integers(1, 60)]
                    for _ in range(3)
                ]
            ).astype("i4")
            for _ in range(generator.integers(1, 9))
        ]
        spans, paths = shared_spans(samples)
        text: dict[int, list[int]] = {}
        for sample, path in zip(samples, paths, strict=True):
            assert [spans[index].parent for index in path] == [ROOT, *path[:-1]]
            place = 0
            for index in path:
                assert spans[index].first == place
                own = sample[place : place + spans[index].size].tolist()
                assert text.setdefault(index, own) == own
                place += spans[index].size
            assert place == sample.size
        assert sorted(text) == list(range(len(spans)))
        assert all(span.parent < index for index, span in enumerate(spans))


def trees(generator: np.random.Generator) -> Batch:
    """Groups whose samples begin alike up to different places."""
    samples = []
    for _ in range(3):
        stems = [generator.integers(0, 3, size=generator.integers(1, 60)) for _ in range(3)]
        samples += [
            np.concatenate(
                [
                    stems[generator.integers(3)][: generator.integers(1, 60)]
                    for _ in range(3)
                ]
            ).astype("i4")
            for _ in range(5)
        ]
    batch = make_batch([sample.size for sample in samples], rollouts=5)
    return replace(batch, token_ids=np.concatenate(samples))


def test_the_packer_shares_at_least_what_the_partition_counts() -> None:
    generator = np.random.default_rng(0)
    sharing = 0
    for _ in range(30):
        batch = trees(generator)
        known = prefixes(batch)
        sizes = SharedSizes(batch.lengths.astype(np.int64), known, 1000.0)
        places = tuple(np.flatnonzero(generator.random(batch.num_samples) < 0.6).tolist())
        rows = [sizes.rows[place] for place in places]
        by_group = [
            [row for row in rows if batch.group[row] == group]
            for group in range(batch.num_groups)
        ]
        ends = batch.cu_seqlens
        spans = [
            shared_spans([batch.token_ids[ends[row] : ends[row + 1]] for row in members])[0]
            for members in by_group
            if members
        ]
        packed_tokens = sum(span.size for own in spans for span in own)
        most_apart = 15 * len(places)
        assert packed_tokens <= sizes.tokens(places) <= packed_tokens + most_apart
        sharing += packed_tokens < int(batch.lengths[rows].sum())
    assert sharing > 10


def test_little_in_common_is_not_shared() -> None:
    batch = make_batch([9, 7, 5, 8], rollouts=4)

    assert [span.parent for span in packed(batch).spans] == [ROOT] * 4


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_each_trained_token_is_foretold_by_the_token_before_it(
    share_prefixes: bool,
) -> None:
    shard = whole_shard(make_siblings())
    (row,) = PackedMicroBatches(shard, torch.device("cpu"), share_prefixes=share_prefixes)

    before = shard.batch.token_ids[row.source - 1]
    assert row.token_ids[row.logit_rows][row.logit_of].tolist() == before.tolist()
    positions = row.source - shard.batch.cu_seqlens[row.sample.numpy()]
    assert (
        row.positions[0, row.logit_rows][row.logit_of].tolist() == (positions - 1).tolist()
    )
