"""Schedule: decides when a batch may be trained, and when engines get new weights.

The rollout service is the schedule of stages that play episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.controller.admission import RolloutState, StaleRule
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.ledger import Ledger
from agentrl.controller.state import TrainState
from agentrl.engines import PauseMode
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class OffPolicyConfig:
    """How far rollouts may run ahead of training (docs/controller.md, Schedule).

    Args:
        max_staleness: η: published versions that a trained token may lie behind; 0 is the
            synchronous schedule.
        pause_mode: what becomes of requests in flight at a publish: ``drain`` lets them end first,
            ``retract`` and ``in_place`` interrupt them, and they go on under the new version.
        on_stale: what becomes of groups with older tokens.
    """

    max_staleness: int = 0
    pause_mode: PauseMode = "retract"
    on_stale: StaleRule = "drop"


class Schedule(Protocol):
    """``next_groups`` blocks until a batch may be trained, ``publish`` until the engines serve the
    new weights."""

    off_policy: OffPolicyConfig

    def start(self, state: TrainState) -> None:
        """Engines serve these weights; admission opens."""
        ...

    def next_groups(self, step: int) -> list[TrajectoryGroup]:
        """The groups of the batch of ``step``; fewer than asked for, or none, where the draws for
        it are spent."""
        ...

    def mark_trained(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """The groups were trained in ``step``; durable when this returns."""
        ...

    def publish(self, state: TrainState, *, changed: bool) -> TrainState:
        """Version + 1 everywhere where the actor changed; the batch in training makes room for the
        next."""
        ...

    def evaluate(self, requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        """Rolls out groups that are not trained, with the weights served now."""
        ...

    def snapshot(self, again: Collection[int] = ()) -> RolloutState:
        """What a checkpoint must know of the rollouts; ``again`` are draws to be played once
        more."""
        ...

    def take_counts(self) -> Mapping[str, int]:
        """What happened to groups since the last call, by the metric's name."""
        ...

    def take_failures(self) -> Sequence[Incident]:
        """Workers and servers that died since the last call, and that the run survived."""
        ...

    def close(self) -> None: ...


class DemonstrationSchedule:
    """Batches of conversations to imitate; no engine, so a publish only counts.

    Args:
        rows: conversations, endless, from the first draw on.
        to_group: makes a trajectory group of a conversation and its draw.
        batch_groups: conversations a batch.
        ledger: the run's; a checkpoint remembers how far it is.
        start: draw that the rows begin at.
    """

    off_policy = OffPolicyConfig()

    def __init__(
        self,
        rows: Iterator[Any],
        to_group: Callable[[Any, int], TrajectoryGroup],
        *,
        batch_groups: int,
        ledger: Ledger,
        start: int = 0,
    ) -> None:
        self._rows = rows
        self._to_group = to_group
        self._batch_groups = batch_groups
        self._draw = start
        self._ledger = ledger

    def start(self, state: TrainState) -> None:
        del state

    def next_groups(self, step: int) -> list[TrajectoryGroup]:
        del step
        groups = []
        for _ in range(self._batch_groups):
            groups.append(self._to_group(next(self._rows), self._draw))
            self._draw += 1
        return groups

    def mark_trained(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """Demonstrations are no rollouts: the ledger knows none of them."""

    def publish(self, state: TrainState, *, changed: bool) -> TrainState:
        return state.published() if changed else state

    def evaluate(self, requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        raise RuntimeError("a stage without an engine has nothing to evaluate with")

    def snapshot(self, again: Collection[int] = ()) -> RolloutState:
        assert not again, "demonstrations are taken in their order, and trained"
        self._ledger.sync()
        return RolloutState(
            next_draw=self._draw, outstanding=(), spent=0, ledger_offset=self._ledger.offset
        )

    def take_counts(self) -> Mapping[str, int]:
        return {}

    def take_failures(self) -> Sequence[Incident]:
        return ()

    def close(self) -> None:
        """Nothing was started."""
