"""Advantages: spreads credit over a shard's tokens, with moments over every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms import AlgorithmSpec, TokenCredit
from agentrl.errors import TrainingError
from agentrl.types import Batch, BatchShard
from agentrl.types.arrays import F32, I64, AnyArray, Floats

_EPS = 1e-8


def shard_advantages(
    shard: BatchShard,
    algorithm: AlgorithmSpec,
    device: torch.device,
    sum_over_ranks: Callable[[Tensor], Tensor],
) -> dict[str, Floats]:
    """``[T]`` ``advantages`` of a shard's tokens, and ``returns`` and columns of custom roles
    where the algorithm gives them; zeros off the mask.

    Where the algorithm normalises, all ranks take part: the moments are (n, Σ, Σ²) in float64 over
    the trained tokens of the whole batch.

    Raises:
        TrainingError: the algorithm returns other than one number a token, or the advantage or
            return of a trained token is not finite.
    """
    credit = token_credit(shard, device)
    if credit.old_logprobs is None and algorithm.old_logprobs == "rollout":
        credit = replace(credit, old_logprobs=credit.rollout_logprobs)
    found = algorithm.advantages(credit)
    trained = credit.mask != 0
    columns = {"advantages": found.advantages}
    if found.returns is not None:
        columns["returns"] = found.returns
    if not all("/" in name for name in found.columns):
        raise TrainingError(
            f"{algorithm.told('advantages')} must name further columns ROLE/NAME, as cost/returns, "
            f"got {', '.join(found.columns)}; name the role that reads each"
        )
    columns |= found.columns
    for name, column in columns.items():
        whose = f"{algorithm.told('advantages')} must return {name}"
        if not isinstance(column, Tensor) or column.shape != trained.shape:
            shape = (
                tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
            )
            raise TrainingError(
                f"{whose}, one number for each of the {trained.numel()} tokens, got {shape}; "
                "return 0 for those that are not trained"
            )
        bad = torch.nonzero(trained & ~torch.isfinite(column)).squeeze(1)
        if bad.numel():
            raise TrainingError(
                f"{whose} that are finite, got {float(column[bad[0]])} for a trained token of "
                f"trajectory {int(credit.trajectory_row[bad[0]])} of the shard ({bad.numel()} "
                "tokens in all); look at the credit of trajectories and turns and at the values "
                "that it is made of"
            )
    if algorithm.normalize_advantages:
        columns["advantages"] = _normalize(columns["advantages"], trained, sum_over_ranks)
    return {
        name: torch.where(trained, column, 0.0).cpu().numpy()
        for name, column in columns.items()
    }


def token_credit(shard: BatchShard, device: torch.device) -> TokenCredit:
    """Credit brought to the tokens of a shard."""
    batch = shard.batch
    mask = batch.loss_mask != 0
    trajectory = np.repeat(batch.trajectory, batch.lengths)
    turn = np.zeros(batch.num_tokens, dtype=np.float32)
    turn[mask] = batch.turn_credit[batch.turn_index[mask]]

    def on_device(array: AnyArray) -> Tensor:
        # What came over Ray is read-only memory.
        return torch.tensor(array, device=device)

    def later(column: Floats | None) -> Tensor | None:
        return None if column is None else on_device(column)

    return TokenCredit(
        trajectory=on_device(batch.credit[trajectory]),
        turn=on_device(turn),
        reward=on_device(due_credit(batch)),
        mask=on_device(mask.astype(np.float32)),
        turn_row=on_device(batch.turn_index.astype(np.int64)),
        sample_row=on_device(np.repeat(np.arange(batch.num_samples), batch.lengths)),
        trajectory_row=on_device(trajectory.astype(np.int64)),
        cut=on_device(batch.truncated[trajectory]),
        interrupted=on_device(batch.interrupted[trajectory]),
        rollout_logprobs=on_device(batch.rollout_logprobs),
        old_logprobs=later(batch.old_logprobs),
        ref_logprobs=later(batch.ref_logprobs),
        values=later(batch.values),
        final_values=later(batch.final_values),
        state=shard.algorithm_state,
        columns={name: on_device(column) for name, column in batch.own.items()},
    )


def due_credit(batch: Batch) -> F32:
    """``[T]`` credits where they fall due: a turn's on its last trained token, or on the last one
    before it where it has none; a trajectory's on its last trained token of all.

    A turn without a trained token at or before it falls due on the first one behind it, so that no
    credit of a trajectory that is trained at all is lost.
    """
    due = np.zeros(batch.num_tokens, dtype=np.float64)
    trained, firsts, ends = _in_turn_order(batch)
    if not trained.size:
        return due.astype(np.float32)
    turns = batch.turn_index[trained].astype(np.int64)
    paid = np.flatnonzero(batch.turn_credit)
    own = batch.turn_trajectory[paid]
    paid, own = paid[ends[own] > firsts[own]], own[ends[own] > firsts[own]]
    places = np.maximum(np.searchsorted(turns, paid, side="right") - 1, firsts[own])
    # Several turns may fall due on one token, to which ``+=`` by index would add one alone.
    np.add.at(due, trained[places], batch.turn_credit[paid])
    rows = np.flatnonzero(ends > firsts)
    due[trained[ends[rows] - 1]] += batch.credit[rows]
    return due.astype(np.float32)


def last_trained(batch: Batch) -> I64:
    """Position of the last trained token of each trajectory that has any."""
    trained, firsts, ends = _in_turn_order(batch)
    return trained[ends[ends > firsts] - 1]


def _in_turn_order(batch: Batch) -> tuple[I64, I64, I64]:
    """Positions of trained tokens by trajectory and turn, and where each trajectory's begin and
    end among them."""
    trained = np.flatnonzero(batch.loss_mask)
    # a turn's tokens lie in one sample, and turns of a trajectory have growing rows
    trained = trained[np.argsort(batch.turn_index[trained], kind="stable")]
    owners = batch.turn_trajectory[batch.turn_index[trained]].astype(np.int64)
    rows = np.arange(batch.num_trajectories)
    return (
        trained,
        np.searchsorted(owners, rows),
        np.searchsorted(owners, rows, side="right"),
    )


def _normalize(
    advantages: Tensor, trained: Tensor, sum_over_ranks: Callable[[Tensor], Tensor]
) -> Tensor:
    own = advantages[trained].double()
    moments = torch.stack([torch.ones_like(own).sum(), own.sum(), (own * own).sum()])
    count, total, squares = sum_over_ranks(moments).tolist()
    if count == 0:
        return advantages
    mean = total / count
    # Rounding can bring the difference of equal advantages below 0.
    variance = max(squares / count - mean * mean, 0.0)
    normalized: Tensor = (advantages.double() - mean) / (math.sqrt(variance) + _EPS)
    return normalized.to(advantages.dtype)
