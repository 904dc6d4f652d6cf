"""Siblings that begin alike: what they share is computed once, and no number tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from agentrl.training import partition, shards
from agentrl.training.packing import Family, Packed, micro_batches
from agentrl.training.policy_model import load_policy
from agentrl.types import Batch, BatchShard, SegmentKind
from tests.tiny_models import SLIDING
from tests.training.harness import layout, make_batch, write_model


def alike(shared: int = 6) -> Batch:
    """Two groups of four; the samples of a group begin with the same prompt, then have a token of their own."""
    batch = make_batch([20, 18, 21, 25, 19, 30, 18, 22])
    ids, kind, mask = batch.token_ids.copy(), batch.kind.copy(), batch.loss_mask.copy()
    for row, start in enumerate(batch.cu_seqlens[:-1]):
        ids[start : start + shared] = np.arange(shared) + 10 * (row // 4)
        ids[start + shared] = 60 + row
        kind[start : start + shared], mask[start : start + shared] = SegmentKind.PROMPT, 0
    return replace(batch, token_ids=ids, kind=kind, loss_mask=mask)


def whole_shard(batch: Batch, micro_batch_tokens: int = 1000) -> BatchShard:
    (plan,) = partition(batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(1, micro_batch_tokens))
    (shard,) = shards(batch, plan)
    return shard


def packed(batch: Batch, *, share_prompts: bool = True) -> Packed:
    (row,) = micro_batches(whole_shard(batch), torch.device("cpu"), share_prompts=share_prompts)
    return row


def outcome(
    model_path: str, batch: Batch, *, share_prompts: bool
) -> tuple[npt.NDArray[np.float32], dict[str, torch.Tensor]]:
    """Logprobs by token, and the gradient of a sum of them with different weights."""
    model, row = load_policy(model_path, attention="segments"), packed(batch, share_prompts=share_prompts)
    logprobs, _ = model(row)
    weights = torch.from_numpy(np.cos(row.source).astype(np.float32))
    (logprobs * weights).sum().backward()
    column = np.zeros(batch.num_tokens, dtype=np.float32)
    column[row.source] = logprobs.detach().numpy()
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return column, gradient


def test_logprobs_and_gradients_are_those_of_samples_apart(model_path: str) -> None:
    together, together_gradient = outcome(model_path, alike(), share_prompts=True)
    apart, apart_gradient = outcome(model_path, alike(), share_prompts=False)

    np.testing.assert_allclose(together, apart, atol=2e-6)
    assert together_gradient.keys() == apart_gradient.keys()
    for name, gradient in apart_gradient.items():
        torch.testing.assert_close(together_gradient[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_a_sliding_window_reaches_back_into_what_is_shared(tmp_path: Path) -> None:
    write_model(tmp_path, **SLIDING)
    together, _ = outcome(str(tmp_path), alike(), share_prompts=True)
    apart, _ = outcome(str(tmp_path), alike(), share_prompts=False)

    np.testing.assert_allclose(together, apart, atol=2e-6)


def test_what_a_group_shares_lies_in_the_row_once() -> None:
    batch = alike()
    shared, apart = packed(batch), packed(batch, share_prompts=False)

    assert [family.shared for family in shared.families] == [6, 6]
    assert shared.token_ids.numel() == apart.token_ids.numel() - 3 * 6 * 2
    assert sum(family.num_tokens for family in shared.families) == shared.token_ids.numel()
    assert apart.families == tuple(Family(0, (int(n),)) for n in whole_shard(batch).batch.lengths)


def test_sharing_ends_where_siblings_differ() -> None:
    batch = alike()
    ids = batch.token_ids.copy()
    ids[batch.cu_seqlens[1] + 4] += 1  # the second sample of the first group

    assert sorted(family.shared for family in packed(replace(batch, token_ids=ids)).families) == [4, 6]


def test_a_trained_token_is_never_shared() -> None:
    batch = alike()
    mask = batch.loss_mask.copy()
    mask[batch.cu_seqlens[5] + 3] = 1

    row = packed(replace(batch, loss_mask=mask))
    assert sorted(family.shared for family in row.families) == [3, 6]
    assert row.source.size == np.count_nonzero(mask)


def test_siblings_that_differ_at_once_stay_apart() -> None:
    batch = make_batch([9, 7, 5, 8], siblings=4)

    assert [family.shared for family in packed(batch).families] == [0, 0, 0, 0]


@pytest.mark.parametrize("share_prompts", [True, False])
def test_each_trained_token_is_foretold_by_the_token_before_it(share_prompts: bool) -> None:
    shard = whole_shard(alike())
    (row,) = micro_batches(shard, torch.device("cpu"), share_prompts=share_prompts)

    before = shard.batch.token_ids[row.source - 1]
    assert row.token_ids[row.logit_rows].tolist() == before.tolist()
    positions = row.source - shard.batch.cu_seqlens[row.sample.numpy()]
    assert row.positions[row.logit_rows].tolist() == (positions - 1).tolist()
