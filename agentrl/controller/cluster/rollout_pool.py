"""Rollout pool: plays groups of episodes and returns their outcomes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agentrl.engines import EngineLayout, EngineNotice, EnginePlan, PauseMode
from agentrl.errors import EngineError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState, RolloutSpec
from agentrl.types import Trajectory
from agentrl.weight_sync import OwnWeights, ServedWeights, WeightsReport

GroupKey: TypeAlias = tuple[str, int]
"""A group in flight: its label (empty in training) and its index."""


def group_key(request: GroupRequest) -> GroupKey:
    """The key of a group."""
    return request.label, request.group_index


Incident: TypeAlias = EngineNotice
"""What the run goes on after, and a person should know."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Where a process of the cluster runs; ``rank`` or ``rollout_worker`` is its number in its
    group, ``gpu`` what CUDA_VISIBLE_DEVICES calls its GPU."""

    host: str
    pid: int
    rank: int | None = None
    rollout_worker: int | None = None
    node: str = ""
    device: str = "the CPU"
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class RolloutWorkerSpec:
    """What a host of episodes is made of: picklable.

    Args:
        engine: what generates.
        rollout: what the episodes share.
        sleeps: whether an engine beside ranks gives its memory back while they train.
    """

    engine: EnginePlan
    rollout: RolloutSpec
    sleeps: bool = False


class GroupPool(Protocol):
    """Plays groups. All rollouts of a group run in one runner, which the pool chooses.

    ``collect``, ``take_ended`` and ``in_flight`` are called by one thread, the collector's; the
    rest from any thread.
    """

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Starts groups."""
        ...

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """Groups that ended, in order of finishing; empty after ``timeout_s`` without one.

        Raises:
            AgentRLError: a runner or its host died.
        """
        ...

    def take_ended(self) -> list[Trajectory]:
        """The attempts that have ended since the last call, of groups that ``collect`` did not
        return yet; they come again with their group."""
        ...

    def cancel(self, keys: Sequence[GroupKey]) -> None:
        """Ends groups in flight."""
        ...

    def in_flight(self) -> list[GroupState]:
        """The states of the groups in training that ``collect`` did not return yet."""
        ...

    def take_failures(self) -> list[Incident]:
        """Workers and servers that died since the last call, and that the pool survived."""
        ...

    def now(self) -> dict[str, Any]:
        """What it does at the moment, as JSON; waits for no worker."""
        ...


class RolloutPool(GroupPool, Protocol):
    """Where episodes are played: the engines too. A pool needs no role group.

    ``setup`` and ``close`` are called while no other call runs, the rest from any thread.
    """

    def setup(self, spec: RolloutWorkerSpec | None) -> None:
        """Hosts a stage's episodes, or none; what an earlier stage left is ended first."""
        ...

    def layout(self) -> EngineLayout | None:
        """How the engines want their weights; None without an engine that takes any."""
        ...

    def update(
        self, weights: ServedWeights | OwnWeights, version: int, mode: PauseMode
    ) -> list[WeightsReport]:
        """Every engine serves the weights as ``version`` when this returns; late joiners get them
        too."""
        ...

    def describe(self) -> list[ProcessInfo]:
        """Where each worker runs."""
        ...

    def close(self) -> None:
        """Ends every worker and what it started."""
        ...


def collect_groups(
    pool: GroupPool, requests: Sequence[GroupRequest], deadline_s: float
) -> list[GroupOutcome]:
    """Submits groups and waits for all of them, where no rollout service runs; in order of their
    indices.

    Raises:
        EngineError: no further one came within ``deadline_s``.
    """
    most = max(1, len(requests))
    outcomes = stream_groups(pool, requests, in_flight=most, deadline_s=deadline_s)
    return sorted(outcomes, key=lambda outcome: outcome.request.group_index)


def stream_groups(
    pool: GroupPool,
    requests: Iterable[GroupRequest],
    *,
    in_flight: int,
    deadline_s: float,
) -> Iterator[GroupOutcome]:
    """Plays any number of groups, a bounded number at a time; each comes as it ends, where no
    rollout service runs.

    Args:
        pool: where they are played.
        requests: taken as there is room.
        in_flight: groups at a time.
        deadline_s: of the wait for one more group.

    Raises:
        EngineError: none came within ``deadline_s``.
    """
    waiting = iter(requests)
    running: set[GroupKey] = set()
    while True:
        new = list(itertools.islice(waiting, in_flight - len(running)))
        running |= {group_key(request) for request in new}
        if new:
            pool.submit(new)
        if not running:
            return
        end = time.monotonic() + deadline_s
        while not (found := _collect(pool, running)):
            if time.monotonic() > end:
                raise EngineError(
                    f"none of {len(running)} groups came within {deadline_s:.0f} s; look for a "
                    "tool that hangs",
                    retryable=False,
                )
        yield from found


def _collect(pool: GroupPool, awaited: set[GroupKey]) -> list[GroupOutcome]:
    """Awaited groups that ended; groups that an earlier user of the pool gave up may come in too,
    and are left out."""
    found = [o for o in pool.collect(1.0) if group_key(o.request) in awaited]
    awaited.difference_update(group_key(outcome.request) for outcome in found)
    return found
