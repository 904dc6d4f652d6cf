"""Samples that begin alike: what they share is computed once, and no number tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from agentrl.training import shards
from agentrl.training.data.packing import Packed, micro_batches
from agentrl.training.data.partition import partition
from agentrl.training.data.prefix_tree import ROOT, Span, shared_spans
from agentrl.training.models import policy_model
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.policy_model import load_policy
from agentrl.types import Batch, BatchShard, SegmentKind
from tests.tiny_models import SLIDING
from tests.training.harness import layout, make_batch, write_model


def alike(shared: int = 6) -> Batch:
    """Two groups of four; the samples of a group begin with the same prompt, then have a token of
    their own.
    """
    batch = make_batch([20, 18, 21, 25, 19, 30, 18, 22])
    ids, kind, mask = batch.token_ids.copy(), batch.kind.copy(), batch.loss_mask.copy()
    for row, start in enumerate(batch.cu_seqlens[:-1]):
        ids[start : start + shared] = np.arange(shared) + 10 * (row // 4)
        ids[start + shared] = 60 + row
        kind[start : start + shared], mask[start : start + shared] = SegmentKind.PROMPT, 0
    return replace(batch, token_ids=ids, kind=kind, loss_mask=mask)


def whole_shard(batch: Batch, micro_batch_tokens: int = 1000) -> BatchShard:
    (plan,) = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(1, micro_batch_tokens)
    )
    (shard,) = shards(batch, plan)
    return shard


def packed(batch: Batch, *, share_prefixes: bool = True) -> Packed:
    (row,) = micro_batches(whole_shard(batch), torch.device("cpu"), share_prefixes=share_prefixes)
    return row


def outcome(
    model_path: str, batch: Batch, *, share_prefixes: bool
) -> tuple[npt.NDArray[np.float32], dict[str, torch.Tensor]]:
    """Logprobs by token, and the gradient of a sum of them with different weights."""
    model, row = (
        load_policy(ModelSpec(model_path)),
        packed(batch, share_prefixes=share_prefixes),
    )
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
    return replace(batch, temperature=np.linspace(0.6, 1.3, batch.num_samples, dtype=np.float32))


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
    np.testing.assert_allclose(together, apart, atol=1e-5)  # 20 units in the last place of float32
    assert together_gradient.keys() == apart_gradient.keys()
    for name, gradient in apart_gradient.items():
        assert_close_to(gradient, together_gradient[name], name)


@pytest.mark.parametrize(
    "batch",
    [alike(), with_turns_in_common(alike()), at_temperatures(with_turns_in_common(alike()))],
    ids=["prompts", "turns", "temperatures"],
)
def test_logprobs_and_gradients_are_those_of_samples_apart(model_path: str, batch: Batch) -> None:
    assert_same(model_path, batch)


def test_logits_may_be_made_in_chunks(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = at_temperatures(with_turns_in_common(alike()))
    whole, whole_gradient = outcome(model_path, batch, share_prefixes=True)
    monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", 7 * 200)
    chunked, chunked_gradient = outcome(model_path, batch, share_prefixes=True)

    np.testing.assert_allclose(chunked, whole, atol=1e-5)  # 20 units in the last place of float32
    for name, gradient in whole_gradient.items():
        assert_close_to(gradient, chunked_gradient[name], name)


def test_a_sliding_window_reaches_back_into_what_is_shared(tmp_path: Path) -> None:
    write_model(tmp_path, **SLIDING)
    assert_same(str(tmp_path), with_turns_in_common(alike()))


def test_what_a_group_shares_lies_in_the_row_once() -> None:
    batch = alike()
    shared, apart = packed(batch), packed(batch, share_prefixes=False)

    assert [span.size for span in shared.spans if span.parent == ROOT] == [6, 6]
    assert shared.token_ids.numel() == apart.token_ids.numel() - 3 * 6 * 2
    assert sum(span.size for span in shared.spans) == shared.token_ids.numel()
    assert apart.spans == tuple(Span(ROOT, 0, int(n)) for n in whole_shard(batch).batch.lengths)


def test_a_trained_token_in_common_is_in_the_row_once_and_trained_for_each() -> None:
    batch = with_turns_in_common(alike())
    row = packed(batch)

    assert row.source.size == np.count_nonzero(batch.loss_mask)
    assert row.logit_rows.numel() < row.source.size
    assert row.token_ids.numel() < packed(alike()).token_ids.numel()


def test_spans_of_samples_worked_by_hand() -> None:
    a, b, c = list(range(20)), list(range(20, 40)), list(range(40, 60))
    samples = [np.array(ids, dtype=np.int32) for ids in (a + b, a + c + [1], [7], a + c, a + c)]
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
    assert [sum(spans[index].size for index in path) for path in paths] == [40, 41, 1, 40, 40]
    assert paths[3] == paths[4] == paths[1][:-1]


def test_spans_put_together_are_the_samples() -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        stems = [generator.integers(0, 3, size=generator.integers(1, 60)) for _ in range(3)]
        samples = [
            np.concatenate(
                [stems[generator.integers(3)][: generator.integers(1, 60)] for _ in range(3)]
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


def test_little_in_common_is_not_shared() -> None:
    batch = make_batch([9, 7, 5, 8], rollouts=4)

    assert [span.parent for span in packed(batch).spans] == [ROOT] * 4


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_each_trained_token_is_foretold_by_the_token_before_it(share_prefixes: bool) -> None:
    shard = whole_shard(alike())
    (row,) = micro_batches(shard, torch.device("cpu"), share_prefixes=share_prefixes)

    before = shard.batch.token_ids[row.source - 1]
    assert row.token_ids[row.logit_rows][row.logit_of].tolist() == before.tolist()
    positions = row.source - shard.batch.cu_seqlens[row.sample.numpy()]
    assert row.positions[row.logit_rows][row.logit_of].tolist() == (positions - 1).tolist()
