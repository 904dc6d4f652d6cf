"""Batching: packs finished trajectories with their credit and loss mask into a ``Batch``."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.types import (
    Batch,
    Experts,
    RoutingShape,
    Sample,
    SegmentKind,
    Trajectory,
    TrajectoryGroup,
    Turn,
    concat_ids,
    concat_media,
)
from agentrl.types.batch import media_array

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
    weight: npt.NDArray[np.float64] | None = None,
    group_rows: Sequence[int] | None = None,
    trained: AbstractSet[SegmentKind] = POLICY_ONLY,
    oldest_version: int = 0,
    routing: RoutingShape | None = None,
) -> Batch:
    """Packs the finished trajectories of ``groups`` (docs/tokens.md, Batch).

    Args:
        groups: in the order of the batch.
        credit: ``[J]`` the algorithm's credit of each finished trajectory, in the same order.
        turn_credit: ``[U]`` its credit of each turn; zeros by default.
        weight: ``[J]`` its weight of each trajectory among the others, ones by default; 0 trains
            nothing of it.
        group_rows: the row of each of ``groups`` on the batch's group axis, by default its place;
            the groups of several agents of one task share a row, and so an optimizer step.
        trained: the segment kinds that are trained if their sample owns the turn.
        oldest_version: tokens sampled by an earlier policy version are not trained.
        routing: of the model that is trained, where its tokens are to go through the experts that
            the sampler chose.

    Returns:
        The batch. A trajectory of several samples keeps one row in the [J] columns.

    Raises:
        DataError: no trajectory is finished or has tokens, or sampling temperatures differ within a
            sample, whose logprobs then have no common meaning; or a token's experts are not those
            of a model of ``routing``.
        ValueError: ``credit`` has another shape.
    """
    trajectories = [trajectory for group in groups for trajectory in group.finished]
    if not trajectories:
        raise DataError("a batch needs at least one finished trajectory, got none")
    if credit.shape != (len(trajectories),):
        raise ValueError(
            f"credit must have shape ({len(trajectories)},), got {credit.shape}"
        )
    weights = np.ones(len(trajectories)) if weight is None else weight
    rows = range(len(groups)) if group_rows is None else group_rows
    turns = turns_of(groups)
    turns_per_row = [len(trajectory.turns) for trajectory in trajectories]
    samples = [
        (row, sample)
        for row, trajectory in enumerate(trajectories)
        for sample in trajectory.samples()
    ]
    if not samples:
        raise DataError(
            "no trajectory of the batch has tokens; train with an engine that returns ids and "
            "logprobs"
        )
    temperatures = [
        _checked_temperature(sample, trajectories[row]) for row, sample in samples
    ]
    first_turn = np.cumsum([0, *turns_per_row])
    return Batch(
        **_token_columns(samples, first_turn, weights, trained, oldest_version),  # type: ignore[arg-type]
        cu_seqlens=np.cumsum([0, *(len(sample) for _, sample in samples)]).astype(np.int32),
        trajectory=np.asarray([row for row, _ in samples], np.int32),
        temperature=np.asarray(temperatures, np.float32),
        turn_trajectory=np.repeat(
            np.arange(len(trajectories), dtype=np.int32), turns_per_row
        ),
        turn_reward=np.asarray(
            [sum(turn.rewards.values()) for _, turn in turns], np.float32
        ),
        turn_credit=np.zeros(len(turns), np.float32)
        if turn_credit is None
        else turn_credit,
        state_key=np.asarray(
            [int(turn.state_key or "0", 16) for _, turn in turns], np.uint64
        ),
        group=np.asarray(
            [row for row, group in zip(rows, groups, strict=True) for _ in group.finished],
            np.int32,
        ),
        group_index=np.asarray([one.group_index for one in trajectories], np.int64),
        rollout_index=np.asarray([one.rollout_index for one in trajectories], np.int32),
        reward=np.asarray([one.reward for one in trajectories], np.float32),
        credit=credit.astype(np.float32),
        weight=weights,
        interrupted=np.asarray([one.status.interrupted for one in trajectories], np.bool_),
        routed_experts=None
        if routing is None
        else _experts(samples, trajectories, routing),
        media=media_array(
            concat_media(one for _, sample in samples for one in sample.segments)
        ),
        truncated=np.asarray(
            [one.status.kind == "truncated" for one in trajectories], np.bool_
        ),
    )


def _token_columns(
    samples: Sequence[tuple[int, Sample]],
    first_turn: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    trained: AbstractSet[SegmentKind],
    oldest_version: int,
) -> dict[str, npt.NDArray[Any]]:
    """The ``[T]`` columns of a batch.

    Args:
        samples: each with the row of its trajectory.
        first_turn: ``[J + 1]`` row of each trajectory's first turn.
        weights, trained, oldest_version: which tokens are trained, as of ``make_batch``.
    """
    segments = [segment for _, sample in samples for segment in sample.segments]
    segment_turns = [
        first_turn[row] + turn for row, sample in samples for turn in sample.segment_turns
    ]
    masks = [
        weights[row] > 0
        and turn in sample.owned
        and segment.kind in trained
        and (segment.policy_version is None or segment.policy_version >= oldest_version)
        for row, sample in samples
        for segment, turn in zip(sample.segments, sample.segment_turns, strict=True)
    ]
    versions = [
        -1 if one.policy_version is None else one.policy_version for one in segments
    ]
    sizes = [len(segment) for segment in segments]
    logprobs = [
        np.zeros(len(one), np.float32) if one.logprobs is None else one.logprobs
        for one in segments
    ]

    def by_token(values: Sequence[object], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.repeat(np.asarray(values, dtype), sizes)

    return {
        "token_ids": concat_ids(segments),
        "kind": by_token([segment.kind for segment in segments], np.int8),
        "loss_mask": by_token(masks, np.float32),
        "rollout_logprobs": np.concatenate(logprobs),
        "policy_versions": by_token(versions, np.int32),
        "turn_index": by_token(segment_turns, np.int32),
    }


def _experts(
    samples: Sequence[tuple[int, Sample]],
    trajectories: Sequence[Trajectory],
    routing: RoutingShape,
) -> Experts:
    """``[T, L, k]`` the experts of each token, as its sampler told."""
    parts = []
    for row, sample in samples:
        for segment in sample.segments:
            record = segment.routed_experts
            if record is None:
                record = routing.unrecorded(len(segment))
            if fault := routing.fault(record):
                raise DataError(
                    f"trajectory {trajectories[row].id} has the experts of another model than the "
                    f"one that is trained: {fault}; train the model that sampled it, or set "
                    "TrainConfig.router_replay=off"
                )
            parts.append(record)
    return np.concatenate(parts)


def _checked_temperature(sample: Sample, trajectory: Trajectory) -> float:
    """The only temperature of a sample; it is 1 if no turn of it was sampled.

    Raises:
        DataError: the sample starts with no PROMPT, or has several temperatures or temperature 0.
    """
    if sample.segments[0].kind is not SegmentKind.PROMPT:
        raise DataError(
            f"a sample starts with PROMPT, that of trajectory {trajectory.id} with "
            f"{sample.segments[0].kind.name}"
        )
    turns = [trajectory.turns[index] for index in sample.turns]
    found = {
        turn.sampling.temperature for turn in turns if turn.sampling and turn.completion
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
