"""Stored schedule: hands out the groups that an earlier run trained, step by step (``run.replay``).

No engine takes part: a publish only counts, as it did in that run, so that the versions of the
stored tokens mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass

from agentrl.algorithms import FilterResult
from agentrl.config import StageConfig
from agentrl.controller.admission import RolloutState
from agentrl.controller.ledger import Ledger
from agentrl.controller.schedule import GroupRecorder, Schedule
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.types import TrajectoryGroup


@dataclass(eq=False)
class StoredSchedule(Schedule):
    """Batches of stored groups, exactly as they were trained. A group that the algorithm filters is
    dropped, and not replaced.

    Args:
        groups_of: the groups of a step, in the order of its batch.
        ledger: of this run, which gets the groups again.
        keep_group: whether a group may be trained on.
        recorder: is told of every group, and of each that is in no batch.
        stage: that trains.
        first_group_index: the index of its first group.
    """

    groups_of: Callable[[int], Sequence[TrajectoryGroup]]
    ledger: Ledger
    _: KW_ONLY
    keep_group: Callable[[TrajectoryGroup], FilterResult]
    recorder: GroupRecorder
    stage: StageConfig
    first_group_index: int = 0

    def __post_init__(self) -> None:
        self._next_group_index = self.first_group_index
        self.max_staleness = self.stage.rollout.max_staleness
        self.on_stale = self.stage.rollout.on_stale

    def next_groups(self, step: int) -> list[TrajectoryGroup]:
        taken = []
        for group in self.groups_of(step):
            index = group.group_index
            self._next_group_index = max(self._next_group_index, index + 1)
            rollouts, stage = group.trajectories, self.stage.name
            self.ledger.move_group(group, "running", *rollouts, stage=stage, stored=True)
            request = GroupRequest(index, group.task, len(rollouts), stage=stage)
            self.recorder.record_outcome(GroupOutcome(request, group))
            self.ledger.enter_ends(group)
            decision = self.keep_group(group)
            if decision.keep:
                self.ledger.move_group(group, "buffered")
                self.ledger.move_group(group, "taken", step=step)
                taken.append(group)
            else:
                self.ledger.move_group(group, "dropped", reason=decision.reason)
                self.recorder.record_dropped(group, decision.reason)
        return taken

    def mark_trained(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        self.ledger.trained_groups(groups, step)

    def snapshot(self, again: Collection[int] = ()) -> RolloutState:
        self.ledger.sync()
        return RolloutState(self._next_group_index, (), 0, self.ledger.offset)
