"""Batching: packs finished trajectories with their credit and loss mask into a ``Batch``."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.types import Batch, Sample, Segment, SegmentKind, Trajectory, TrajectoryGroup, Turn

__all__ = ["POLICY_ONLY", "make_batch", "turns_of"]

POLICY_ONLY: AbstractSet[SegmentKind] = frozenset({SegmentKind.POLICY})


def turns_of(groups: Sequence[TrajectoryGroup]) -> list[tuple[Trajectory, Turn]]:
    """The [U] axis: each turn of each finished trajectory, by group, rollout and call."""
    return [
        (trajectory, turn)
        for group in groups
        for trajectory in group.finished
        for turn in trajectory.turns
    ]


def make_batch(
    groups: Sequence[TrajectoryGroup],
    *,
    credit: npt.NDArray[np.float32],
    turn_credit: npt.NDArray[np.float32] | None = None,
    trained: AbstractSet[SegmentKind] = POLICY_ONLY,
    oldest_version: int = 0,
) -> Batch:
    """Packs the finished trajectories of ``groups`` (docs/tokens.md, Batch).

    Args:
        groups: in the order of the batch.
        credit: ``[J]`` the algorithm's credit of each finished trajectory, in the same order.
        turn_credit: ``[U]`` its credit of each turn; zeros by default.
        trained: the segment kinds that are trained if their sample owns the turn.
        oldest_version: tokens sampled by an earlier policy version are not trained.

    Returns:
        The batch. A trajectory of several samples keeps one row in the [J] columns.

    Raises:
        DataError: no trajectory is finished or has tokens, or sampling temperatures differ within a
            sample, whose logprobs then have no common meaning.
        ValueError: ``credit`` has another shape.
    """
    trajectories = [trajectory for group in groups for trajectory in group.finished]
    if not trajectories:
        raise DataError("a batch needs at least one finished trajectory, got none")
    if credit.shape != (len(trajectories),):
        raise ValueError(f"credit must have shape ({len(trajectories)},), got {credit.shape}")
    group_row = [row for row, group in enumerate(groups) for _ in group.finished]
    turns = turns_of(groups)
    first_turn = np.cumsum([0, *(len(trajectory.turns) for trajectory in trajectories)])
    packed = _Packed(trained, oldest_version)
    for row, trajectory in enumerate(trajectories):
        for sample in trajectory.samples():
            packed.add(sample, trajectory, row, int(first_turn[row]))
    if not packed.lengths:
        raise DataError(
            "no trajectory of the batch has tokens; train with an engine that returns ids and "
            "logprobs"
        )
    rows_of_turns = np.repeat(np.arange(len(trajectories)), np.diff(first_turn))
    return Batch(
        token_ids=np.concatenate(packed.ids).astype(np.int32),
        kind=np.concatenate(packed.kind).astype(np.int8),
        loss_mask=np.concatenate(packed.mask).astype(np.float32),
        rollout_logprobs=np.concatenate(packed.logprobs).astype(np.float32),
        policy_versions=np.concatenate(packed.versions).astype(np.int32),
        turn_index=np.concatenate(packed.turns).astype(np.int32),
        cu_seqlens=np.cumsum([0, *packed.lengths]).astype(np.int32),
        trajectory=np.asarray(packed.trajectory, dtype=np.int32),
        temperature=np.asarray(packed.temperature, dtype=np.float32),
        turn_trajectory=rows_of_turns.astype(np.int32),
        turn_reward=np.asarray([sum(turn.rewards.values()) for _, turn in turns], dtype=np.float32),
        turn_credit=np.zeros(len(turns), dtype=np.float32) if turn_credit is None else turn_credit,
        state_key=np.asarray(
            [int(turn.state_key or "0", 16) for _, turn in turns], dtype=np.uint64
        ),
        group=np.asarray(group_row, dtype=np.int32),
        group_index=np.asarray(
            [trajectory.group_index for trajectory in trajectories], dtype=np.int64
        ),
        rollout_index=np.asarray(
            [trajectory.rollout_index for trajectory in trajectories], dtype=np.int32
        ),
        reward=np.asarray([trajectory.reward for trajectory in trajectories], dtype=np.float32),
        credit=credit.astype(np.float32),
        truncated=np.asarray(
            [trajectory.status.kind == "truncated" for trajectory in trajectories], dtype=np.bool_
        ),
    )


class _Packed:
    """The batch's columns, to which samples are appended."""

    def __init__(self, trained: AbstractSet[SegmentKind], oldest_version: int) -> None:
        self.trained = trained
        self.oldest_version = oldest_version
        self.ids: list[npt.NDArray[np.int32]] = []
        self.kind: list[npt.NDArray[np.int8]] = []
        self.mask: list[npt.NDArray[np.float32]] = []
        self.logprobs: list[npt.NDArray[np.float32]] = []
        self.versions: list[npt.NDArray[np.int32]] = []
        self.turns: list[npt.NDArray[np.int32]] = []
        self.lengths: list[int] = []
        self.trajectory: list[int] = []
        self.temperature: list[float] = []

    def add(self, sample: Sample, trajectory: Trajectory, row: int, first_turn: int) -> None:
        """Appends a sample of trajectory ``row``, whose first turn has row ``first_turn`` in [U]."""
        if sample.segments[0].kind is not SegmentKind.PROMPT:
            raise DataError(
                f"a sample starts with PROMPT, that of trajectory {trajectory.id} with "
                f"{sample.segments[0].kind.name}"
            )
        for segment, turn in zip(sample.segments, sample.segment_turns, strict=True):
            self._add_segment(segment, owned=turn in sample.owned, turn=first_turn + turn)
        self.lengths.append(len(sample))
        self.trajectory.append(row)
        self.temperature.append(_temperature(sample, trajectory))

    def _add_segment(self, segment: Segment, *, owned: bool, turn: int) -> None:
        n = len(segment)
        zeros = np.zeros(n, dtype=np.float32)
        self.ids.append(segment.token_ids)
        self.kind.append(np.full(n, segment.kind, dtype=np.int8))
        fresh = segment.policy_version is None or segment.policy_version >= self.oldest_version
        self.mask.append(
            np.full(n, float(owned and fresh and segment.kind in self.trained), dtype=np.float32)
        )
        self.logprobs.append(zeros if segment.logprobs is None else segment.logprobs)
        version = -1 if segment.policy_version is None else segment.policy_version
        self.versions.append(np.full(n, version, dtype=np.int32))
        self.turns.append(np.full(n, turn, dtype=np.int32))


def _temperature(sample: Sample, trajectory: Trajectory) -> float:
    """The only temperature of a sample; it is 1 if no turn of it was sampled."""
    found = {
        turn.sampling.temperature
        for turn in (trajectory.turns[index] for index in sample.turns)
        if turn.sampling is not None and turn.completion
    }
    if len(found) > 1:
        raise DataError(
            f"trajectory {trajectory.id} was sampled at temperatures {sorted(found)} within one "
            f"sequence; its logprobs have no common meaning: use one temperature for the turns of "
            f"an episode"
        )
    temperature = found.pop() if found else 1.0
    if temperature == 0.0:
        raise DataError(
            f"trajectory {trajectory.id} was sampled greedily (temperature 0) and cannot be trained"
        )
    return temperature
