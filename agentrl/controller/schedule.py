"""Schedule: decides when a batch may be trained, and when engines get new weights.

The rollout service is the schedule of stages that play episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from agentrl.controller.admission import RolloutState, StaleRule
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.ledger import Ledger
from agentrl.controller.state import TrainState
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.types import Trajectory, TrajectoryGroup


class Schedule:
    """``next_groups`` blocks until a batch may be trained, ``publish`` until the engines serve the
    new weights. What is written here is enough without an engine: a publish only counts.

    Attributes:
        max_staleness: η: published versions that a trained token may lie behind; 0 is the
            synchronous schedule (docs/controller.md, Schedule).
        on_stale: what keeps older tokens out of a batch.
    """

    max_staleness: int = 0
    on_stale: StaleRule = "wait"

    def start(self, state: TrainState) -> None:
        """Engines serve these weights; admission opens."""

    def next_groups(self, step: int) -> list[TrajectoryGroup]:
        """The groups of the batch of ``step``; fewer than asked for, or none, where the draws for
        it are spent."""
        raise NotImplementedError

    def waiting(self) -> Collection[int]:
        """Groups that have finished and wait for a later batch."""
        return ()

    def mark_trained(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """The groups were trained in ``step``; durable when this returns."""

    def publish(self, state: TrainState, *, changed: Collection[str]) -> TrainState:
        """Version + 1 everywhere of the policies that ``changed``; the batch in training makes room
        for the next."""
        return state.published(changed)

    def evaluate(self, requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        """Rolls out groups that are not trained, with the weights served now."""
        raise NotImplementedError

    def snapshot(self, again: Collection[int] = ()) -> RolloutState:
        """What a checkpoint must know of the rollouts; ``again`` are draws to be played once
        more."""
        raise NotImplementedError

    def take_counts(self) -> Mapping[str, float]:
        """What happened since the last call, by the metric's name."""
        return {}

    def take_rates(self) -> Mapping[str, float]:
        """How fast episodes were played since the last call, by the metric's name; nothing where
        none are."""
        return {}

    def take_failures(self) -> Sequence[Incident]:
        """Workers and servers that died since the last call, and that the run survived."""
        return ()

    def now(self) -> dict[str, Any]:
        """What is in flight, as JSON; nothing where no episode is played."""
        return {}

    def close(self) -> None:
        """Ends what was started."""


class GroupRecorder:
    """Is told what becomes of a stage's groups, by a thread of the schedule's too. What is written
    here keeps nothing."""

    def record_outcome(self, outcome: GroupOutcome) -> None:
        """A group came to its end; an evaluation's groups do so too."""

    def record_ended(self, trajectory: Trajectory) -> None:
        """An attempt ended while its group goes on; it comes again with the outcome."""

    def record_dropped(self, group: TrajectoryGroup, reason: str) -> None:
        """A finished group is in no batch. The schedule's lock is held meanwhile."""

    def record_failures(self, incidents: Sequence[Incident]) -> None:
        """What the run survived since the last call, which may be nothing."""


@dataclass(eq=False)
class DemonstrationSchedule(Schedule):
    """Batches of conversations to imitate. They are no rollouts: the ledger knows none of them.

    Args:
        rows: conversations, endless, from the first draw on.
        to_group: makes a trajectory group of a conversation and its draw.
        batch_groups: conversations a batch.
        ledger: the run's; a checkpoint remembers how far it is.
        next_group_index: that the rows begin at.
    """

    rows: Iterator[Any]
    to_group: Callable[[Any, int], TrajectoryGroup]
    _: KW_ONLY
    batch_groups: int
    ledger: Ledger
    next_group_index: int = 0

    def next_groups(self, step: int) -> list[TrajectoryGroup]:
        first = self.next_group_index
        self.next_group_index += self.batch_groups
        return [
            self.to_group(next(self.rows), draw)
            for draw in range(first, self.next_group_index)
        ]

    def snapshot(self, again: Collection[int] = ()) -> RolloutState:
        assert not again, "demonstrations are taken in their order, and trained"
        self.ledger.sync()
        return RolloutState(self.next_group_index, (), 0, self.ledger.offset)
