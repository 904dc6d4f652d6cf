"""Groups: the request for a group, the group in flight, and its outcome."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from agentrl.envs import EnvSpec
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.driver import DriverSpec
from agentrl.rollouts.rollout_spec import EpisodeKey
from agentrl.rollouts.states.snapshots import GroupState, NotResumable, StateSlot
from agentrl.sandbox import PoolCounts
from agentrl.types import Purpose, SamplingParams, Status, Task, Trajectory, TrajectoryGroup
from agentrl.types.loop_thread import LoopLag

KILLS_WORKER = "kills_worker"
"""Why a group was given up: each of the workers that played it died."""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A request for the rollouts of one task.

    Args:
        group_index: the group's index in the data order.
        task: the problem.
        group_size: rollouts that must finish.
        purpose: training, baseline or evaluation.
        label: the evaluation's name; empty in training.
        sampling: overrides the stage's sampling.
        env: overrides the stage's environment or driver.
        oversample: additional rollouts. Once ``group_size`` have finished, the others are
            cancelled.
        greedy_baseline: one more rollout, the last, is greedy and has the purpose ``baseline``: the
            others are compared with it, and it is never trained.
        first_attempt: the number of earlier attempts, which were lost with their host.
        saved: the group's state in a checkpoint, from which each rollout continues.
        stage: the stage of the run that asks; it is in no seed.
    """

    group_index: int
    task: Task
    group_size: int
    purpose: Purpose = "train"
    label: str = ""
    sampling: SamplingParams | None = None
    env: EnvSpec | DriverSpec | None = None
    oversample: int = 0
    greedy_baseline: bool = False
    first_attempt: int = 0
    saved: GroupState | None = None
    stage: str = ""

    @property
    def num_rollouts(self) -> int:
        """All rollouts of the group, the additional ones included."""
        return self.group_size + self.oversample + self.greedy_baseline

    def is_baseline(self, rollout_index: int) -> bool:
        """Whether a rollout is the greedy one."""
        return self.greedy_baseline and rollout_index == self.num_rollouts - 1

    def key(self, rollout_index: int, attempt: int = 0) -> EpisodeKey:
        """The name of a rollout, whose attempt is counted after the lost ones."""
        return EpisodeKey(
            self.group_index,
            rollout_index,
            self.first_attempt + attempt,
            "baseline" if self.is_baseline(rollout_index) else self.purpose,
            self.label,
            self.stage,
            self.group_size,
        )


@dataclass(frozen=True, slots=True, eq=False)
class GroupOutcome:
    """A group whose rollouts have all finished, failed or been cancelled.

    Args:
        request: the request, without its saved state.
        group: the last attempt of every rollout.
        retried: attempts that failed by infrastructure and were repeated.
        sandboxes: the counts of the runner's sandbox pool at that time; None without a pool.
        lag: of the runner's event loop, since the group before.
        ended: of a cancelled group, the rollouts that had ended before; in ``group`` they are
            cancelled like the others, since no statistic may count the quick ones alone.
        unscored: groups that waited for a reward model's scores when this one got its own, itself
            included; 0 without one.
        abandoned: calls of the runner's process that ran on then, after their callers had given
            them up; None where no runner played the group.
    """

    request: GroupRequest
    group: TrajectoryGroup
    retried: tuple[Trajectory, ...] = ()
    sandboxes: PoolCounts | None = None
    ended: tuple[Trajectory, ...] = ()
    lag: LoopLag | None = None
    unscored: int = 0
    abandoned: int | None = None

    @property
    def played(self) -> TrajectoryGroup:
        """The group with each rollout as it ended, also where the group was cancelled later."""
        ended = {trajectory.id: trajectory for trajectory in self.ended}
        rollouts = tuple(ended.get(one.id, one) for one in self.group.trajectories)
        return replace(self.group, trajectories=rollouts)


@dataclass(slots=True, eq=False)
class GroupInFlight:
    """A running group; used in its event loop only.

    Attributes:
        task: plays it; None where its caller does.
        rollouts: each rollout's trajectory if it has ended, otherwise the slot of its state.
        retried: attempts that failed by infrastructure and are repeated.
        news: attempts that have ended and that nobody was told of; its loop appends, the thread
            that collects takes.
        builders: of the attempts that run, by rollout index; other threads look at them.
    """

    request: GroupRequest
    task: asyncio.Task[None] | None = None
    news: deque[Trajectory] = field(default_factory=deque)
    builders: dict[int, TrajectoryBuilder] = field(default_factory=dict)
    rollouts: list[Trajectory | StateSlot] = field(init=False)
    retried: list[Trajectory] = field(init=False)

    def __post_init__(self) -> None:
        saved = self.request.saved
        kept = (
            (NotResumable(),) * self.request.num_rollouts
            if saved is None
            else saved.rollouts
        )
        self.rollouts = [
            one if isinstance(one, Trajectory) else StateSlot(one) for one in kept
        ]
        self.retried = [] if saved is None else list(saved.retried)

    def cancel(self) -> None:
        """Cancels the group once: a second time would interrupt its cleanup."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    def save(self) -> GroupState:
        """The group's present state."""
        return GroupState(
            self.request.group_index,
            tuple(
                one if isinstance(one, Trajectory) else one.state for one in self.rollouts
            ),
            tuple(self.retried),
            first_attempt=self.request.first_attempt,
        )


def cancelled_outcome(
    request: GroupRequest, state: GroupState | None = None, reason: str = "cancelled"
) -> GroupOutcome:
    """The outcome of a cancelled group: every rollout has status ``cancelled``.

    Args:
        request: the group's.
        state: as it was cancelled; by default the one that it was to go on from.
        reason: of the status.
    """
    state = state or GroupInFlight(request).save()
    failed = Counter(one.rollout_index for one in state.retried)
    ended = tuple(one for one in state.rollouts if isinstance(one, Trajectory))
    attempts = {one.rollout_index: one.attempt for one in ended}

    def cancelled(rollout_index: int) -> Trajectory:
        key = request.key(rollout_index, failed[rollout_index])
        builder = TrajectoryBuilder(
            replace(key, attempt=attempts.get(rollout_index, key.attempt)),
            request.task,
            info={"cancelled_at": time.time()},
            env="" if request.env is None else request.env.name,
        )
        return builder.finish(Status("cancelled", reason))

    rollouts = tuple(map(cancelled, range(request.num_rollouts)))
    group = TrajectoryGroup(request.group_index, request.task, rollouts)
    return GroupOutcome(replace(request, saved=None), group, state.retried, ended=ended)
