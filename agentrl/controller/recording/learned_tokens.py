"""Learned tokens: what a step's learners leave of each token, as annotations of its trajectories.

Axes: T tokens of the batch, S samples, J trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.controller.batch_plan import PlannedBatch
from agentrl.store import Annotation, Detail
from agentrl.types import Batch, BatchShard, SegmentKind, Stats, Trajectory, TrajectoryGroup
from agentrl.types.arrays import F64, I32, I64, AnyArray, Bools, Floats
from agentrl.types.batch import token_rows

Columns = dict[str, AnyArray]

_TRAINED = 0
_MASK = 1
_STALE = 2
_FILTERED = 3
_OFF_POLICY = 4
"""Places in ``annotations.annotation.LOSS_REASONS``."""


class LearnedTokens:
    """Of one step. Of several passes over its batch the last counts.

    Args:
        planned: the batch, with the columns of every pass before the update.
        num_passes: over the batch.
        oldest_version: tokens sampled by an earlier policy version are not trained.
        detail: what is kept (``store.detail``).
    """

    def __init__(
        self, planned: PlannedBatch, *, num_passes: int, oldest_version: int, detail: Detail
    ) -> None:
        self.planned = planned
        self._num_passes = num_passes
        self._oldest_version = oldest_version
        self._detail = detail
        self._returned: dict[str, dict[str, Floats]] = {}
        self._losses: list[float] = []
        self._skipped = np.zeros(planned.batch.num_samples, dtype=np.bool_)

    def add(
        self,
        learner: str,
        mini_batch: Sequence[BatchShard],
        columns: Mapping[str, Floats],
        stats: Stats,
        *,
        skipped: bool = False,
    ) -> None:
        """Take the columns of an optimizer step.

        Args:
            learner: that took it; the first one given is the model that the stage is about.
            mini_batch: the shards that it was given.
            columns: ``[T]`` by name.
            stats: of the step.
            skipped: whether it was not taken, for its gradient; it then leaves no numbers.
        """
        samples = np.concatenate([shard.samples for shard in mini_batch])
        rows = token_rows(self.planned.batch.cu_seqlens, samples)
        own = self._returned.setdefault(learner, {})
        for name, column in columns.items():
            kept = own.setdefault(name, np.zeros_like(column))
            kept[rows] = column[rows]
        if learner == next(iter(self._returned)):
            self._skipped[samples] = skipped
            if skipped or "policy/loss" in stats:
                self._losses.append(math.nan if skipped else stats["policy/loss"].mean)

    @property
    def last_pass(self) -> dict[str, float]:
        """``policy/loss_last_pass`` where there were several: what the tokens' losses sum to."""
        number = len(self._losses) // self._num_passes
        if self._num_passes == 1 or not number:
            return {}
        losses = [loss for loss in self._losses[-number:] if not math.isnan(loss)]
        return {"policy/loss_last_pass": float(np.mean(losses))} if losses else {}

    def annotations(
        self, stage: str, step: int, trajectories: Mapping[tuple[int, int], Trajectory]
    ) -> Iterator[Annotation]:
        """One a learner and trajectory; those of several agents have a row of the batch for each.

        Args:
            stage: whose step it was.
            step: its number.
            trajectories: those of the batch, by group index and rollout index.
        """
        batch = self.planned.batch
        keys = zip(batch.group_index.tolist(), batch.rollout_index.tolist(), strict=True)
        places: dict[tuple[int, int], list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        rows = batch.sampled_rows()
        ends = np.cumsum([own.size for own in rows])[:-1]
        every = np.concatenate(rows)
        for number, (learner, returned) in enumerate(self._returned.items()):
            first = number == 0
            if not (first or returned):
                continue
            columns = {} if self._detail == "basic" else self._columns(returned, first)
            arrays = {
                name: np.split(column[every], ends) for name, column in columns.items()
            }
            for key, own in places.items():
                trajectory = trajectories[key]
                values = {"trained_step": step, "stage": stage}
                found = {
                    name: [parts[row] for row in own] for name, parts in arrays.items()
                }
                yield Annotation(
                    trajectory.id,
                    step,
                    learner,
                    self._num_passes - 1,
                    {**values, **(self._values(own, rows, returned) if first else {})},
                    _of_all_agents(
                        trajectory, [self.planned.agents[row] for row in own], found
                    )
                    if trajectory.seats
                    else {name: parts[0] for name, parts in found.items()},
                )

    def _values(
        self, own: Sequence[int], rows: Sequence[I64], returned: Mapping[str, Floats]
    ) -> dict[str, Any]:
        """Of a trajectory, whose rows of the batch are ``own``, by the model that the stage is
        about."""
        batch = self.planned.batch
        values: dict[str, Any] = {"credit": float(batch.credit[own[0]])}
        if self._detail != "basic":
            recomputed = batch.old_logprobs is not None
            if recomputed or "logprobs" in returned:
                values["old_logprobs_from"] = "recomputed" if recomputed else "update"
        tokens = np.concatenate([rows[row] for row in own])
        values |= _staleness(batch.policy_versions[tokens], self.planned.policy_version)
        trained = tokens[batch.loss_mask[tokens] != 0]
        old = returned.get("logprobs") if batch.old_logprobs is None else batch.old_logprobs
        clipped = returned.get("clipped")
        columns = {
            "advantage": None if batch.advantages is None else batch.advantages[trained],
            "clip_frac": None if clipped is None else clipped[trained] != 0,
            "mismatch": None
            if old is None
            else np.abs(old[trained] - batch.rollout_logprobs[trained]),
        }
        # not of demonstrations, which no engine sampled
        known = {
            name: one[np.isfinite(one)] for name, one in columns.items() if one is not None
        }
        found = {
            name: float(one.max() if name == "mismatch" else one.mean())
            for name, one in known.items()
            if one.size
        }
        return values | found

    def _columns(self, returned: Mapping[str, Floats], first: bool) -> Columns:
        """``[T]`` columns of a learner, by their names in annotations; NaN where a token that was
        not trained has no value."""
        batch = self.planned.batch
        trained = batch.loss_mask != 0
        found = dict(returned)
        update_logprobs = found.pop("logprobs", None)
        if first:
            given = {
                "old_logprobs": update_logprobs
                if batch.old_logprobs is None
                else batch.old_logprobs,
                "advantages": batch.advantages,
                "ref_logprobs": batch.ref_logprobs if self._detail == "full" else None,
            }
            found |= {name: column for name, column in given.items() if column is not None}
        # An untrained token's loss is 0 and not NaN: weighed, all of them sum to the step's loss.
        token_loss = found.pop("token_loss", None)
        clipped = found.pop("clipped", None)
        columns: Columns = {
            name: np.where(trained, column, np.float32(np.nan))
            for name, column in found.items()
        }
        columns["loss_weight"] = loss_weights(self.planned, self._skipped).astype(
            np.float32
        )
        columns["loss_reason"] = self._reasons(trained, found.get("correction"))
        if token_loss is not None:
            columns["token_loss"] = token_loss
        if clipped is not None:
            columns["clipped"] = clipped.astype(np.int8)
        return columns

    def _reasons(self, trained: Bools, correction: Floats | None) -> npt.NDArray[np.int8]:
        batch = self.planned.batch
        stale = (batch.policy_versions < self._oldest_version) & (
            batch.kind == SegmentKind.POLICY
        )
        reasons = np.full(trained.size, _MASK, np.int8)
        reasons[stale] = _STALE
        reasons[trained] = _TRAINED
        # by ``select``
        left_out = np.repeat(batch.weight[batch.trajectory] == 0, batch.lengths)
        reasons[left_out & (batch.kind == SegmentKind.POLICY)] = _FILTERED
        if correction is not None:
            reasons[trained & (correction == 0)] = _OFF_POLICY
        return reasons


def _of_all_agents(
    trajectory: Trajectory, agents: Sequence[str], found: Mapping[str, Sequence[Any]]
) -> Columns:
    """Columns of every sampled token of an episode of several agents.

    Args:
        trajectory: the episode.
        agents: those of its agents that are in the batch.
        found: their own columns by name, in the order of ``agents``.
    """
    seats = trajectory.seats
    places = {agent: place for place, agent in enumerate(agents)}
    turns = [(turn.agent, sum(map(len, turn.completion))) for turn in trajectory.turns]
    sizes = [size for _, size in turns]
    owner = np.repeat([places.get(agent, -1) for agent, _ in turns], sizes)
    untrained = np.repeat(
        [_FILTERED if seats[agent].train else _MASK for agent, _ in turns], sizes
    )
    columns: Columns = {}
    for name, parts in found.items():
        whole = np.zeros(owner.size, parts[0].dtype)
        if name == "loss_reason":
            whole[:] = untrained
        elif name not in ("loss_weight", "token_loss") and whole.dtype == np.float32:
            whole[:] = np.nan
        for place, part in enumerate(parts):
            whole[owner == place] = part
        columns[name] = whole
    return columns


def _staleness(versions: I32, version: int) -> dict[str, int]:
    """Of tokens of these versions to the weights of one; nothing where none was sampled."""
    sampled = versions[versions >= 0]
    return {"staleness": version - int(sampled.min())} if sampled.size else {}


def left_out(
    group: TrajectoryGroup, reason: str, stage: str, step: int, version: int
) -> Iterator[Annotation]:
    """That no token of a dropped group weighs anything, one annotation a finished trajectory.

    Args:
        group: finished, and in no batch.
        reason: of the ledger: ``stale``, or what the filter said.
        stage: that left it out.
        step: its step that did.
        version: of the weights that the step trained.
    """
    why = _STALE if reason == "stale" else _FILTERED
    for trajectory in group.finished:
        size = trajectory.num_policy_tokens
        arrays: Columns = {
            "loss_weight": np.zeros(size, np.float32),
            "loss_reason": np.full(size, why, np.int8),
        }
        versions = np.array(sorted(trajectory.policy_versions), np.int32)
        values = {"stage": stage, **_staleness(versions, version)}
        yield Annotation(trajectory.id, step, values=values, arrays=arrays)


def loss_weights(planned: PlannedBatch, skipped: Bools) -> F64:
    """``[T]`` weights of the tokens in the step's loss, which is the mean over the mini-batches of
    one pass: w_s · mask over their number (docs/training.md). Those without trained tokens take no
    step and do not count.

    Args:
        planned: the batch.
        skipped: ``[S]`` whether the sample's mini-batch took no step for its gradient; such a one
            does not count either.
    """
    batch: Batch = planned.batch
    starts = batch.cu_seqlens[:-1].astype(np.int64)
    trained = np.logical_or.reduceat(batch.loss_mask != 0, starts)
    trained &= ~skipped
    weights = np.zeros(batch.num_samples)
    number = 0
    for plan, own in planned.updates:
        weights += np.where(skipped, 0.0, own)
        number += bool(trained[plan.samples].any())
    return np.repeat(weights / max(1, number), batch.lengths) * batch.loss_mask
