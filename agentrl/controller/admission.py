"""Admission: which groups may be in flight, and when a batch of them may close.

``Backlog`` is told what happens and says what may be done: no clock, no thread, no pool. The
rollout service calls it under its lock. With ``rollout.on_stale: wait`` it keeps two promises,
which docs/controller.md proves (Why nothing is lost):

- what is outstanding when a batch closes can be trained in time: for each j at most j·B groups must
  be trained within j batches;
- while the loop waits for a batch, a group runs, one may be issued, or the batch may close.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.config import StageConfig
from agentrl.errors import EngineError
from agentrl.rollouts import GroupState
from agentrl.rollouts.samplers.prompt_sampler import SamplerState
from agentrl.types import TrajectoryGroup

StaleRule = Literal["wait", "drop", "mask_tokens"]
"""A batch waits for groups that would become too old, or they are dropped, or those of their tokens
that are too old are not trained."""


def draws_per_batch(stage: StageConfig) -> int:
    """Draws that may be in flight or spent when a batch closes."""
    rollout, size = stage.rollout, stage.train.batch_prompts
    refill = int(rollout.max_resample_ratio * size)
    return (rollout.max_staleness + 1) * size + refill + _oversample(stage)


def _oversample(stage: StageConfig) -> int:
    """Draws in flight beyond those of the batches."""
    return int(stage.rollout.oversample * stage.train.batch_prompts)


@dataclass(frozen=True, slots=True)
class RolloutState:
    """What a checkpoint must know.

    Args:
        next_group_index: the next new one.
        outstanding: draws to issue again: those that ran.
        spent: how much of the refill is.
        ledger_offset: rows of the ledger at that moment.
        groups: that were finished and wait to be trained; the checkpoint holds them whole.
        running: how those that ran stood; other draws start again.
        sampler: the tasks of draws, and the task sampler's own state.
        unobserved: groups of the open batch that the task sampler has not observed yet
            (``run.deterministic``); the checkpoint holds them whole.
    """

    next_group_index: int
    outstanding: tuple[int, ...]
    spent: int
    ledger_offset: int
    groups: tuple[TrajectoryGroup, ...] = ()
    running: tuple[GroupState, ...] = ()
    sampler: SamplerState = field(default_factory=SamplerState)
    unobserved: tuple[TrajectoryGroup, ...] = ()


def in_time(slacks: Iterable[float], batch_groups: int) -> bool:
    """Whether groups that stay when a batch closes can be trained in time by those after it.

    Args:
        slacks: of each group, versions that may be published until it must have been taken. It may
            be taken in the next batch alone where this is 1, and in none where it is 0.
        batch_groups: groups of a batch.
    """
    # the earliest first: the i-th of them is taken in the batch i // B after the next
    return all(slack > place // batch_groups for place, slack in enumerate(sorted(slacks)))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A finished group, and the versions of its oldest and its newest token; infinity where it has
    none that was sampled."""

    group: TrajectoryGroup
    oldest: float
    newest: float


@dataclass(eq=False)
class Backlog:
    """The groups of a stage that run or wait, and the draws to issue.

    With B = ``train.batch_prompts`` and η = ``rollout.max_staleness`` a draw is issued while
    in_training + waiting + running < (η + 1)·B. ``rollout.oversample`` adds draws while no batch is
    in training, and what then runs for nothing is cancelled. With ``run.deterministic`` draws are
    issued only while the loop waits for them, so that nothing is in flight at a checkpoint.

    Args:
        stage: whole; its sections bound what is in flight, and no more is than the batches up to
            its last step need.
        restored: the draws to go on from. Those of its groups that wait come by ``keep``.
    """

    stage: StageConfig
    restored: RolloutState

    def __post_init__(self) -> None:
        self._size = self.stage.train.batch_prompts
        self._max_staleness = self.stage.rollout.max_staleness
        self._waits = self.stage.rollout.on_stale == "wait"
        self._in_draw_order = self.stage.run.deterministic
        self.saved = {group.group_index: group for group in self.restored.running}
        """The states of draws to play again that were saved."""
        # those with a state first: their tokens are the oldest
        self.again = sorted(
            self.restored.outstanding, key=lambda draw: draw not in self.saved
        )
        """Draws to issue before new ones."""
        self.next_group_index = self.restored.next_group_index
        self.running: dict[int, Mapping[str, int]] = {}
        """Of each policy that a group trains, the version served when it was issued: none of its
        tokens is older."""
        self.cancelling: dict[int, str] = {}
        """Those of them that are cancelled, and why."""
        self._waiting: list[_Waiting] = []
        self.in_training = 0
        """Groups of a batch, while one is trained."""
        # The groups that wait were issued before the resume, and `keep` does not count them.
        self._issued = self.restored.spent + len(self.restored.groups)
        self._step = 0
        self._versions: Mapping[str, int] = {}
        # of the weights sent last, which engines may have before a publish is over
        self._sent: Mapping[str, int] = {}

    def start(self, step: int, versions: Mapping[str, int]) -> None:
        """``step`` batches are trained, and these versions are served."""
        self._step = step
        self._versions = self._sent = versions

    @property
    def groups(self) -> list[TrajectoryGroup]:
        """The finished groups that wait for a batch."""
        return [one.group for one in self._waiting]

    def phases(self) -> list[dict[str, Any]]:
        """Of each group that runs or waits its phase, and the staleness of its oldest token if it
        were taken now, as JSON."""
        oldest: dict[Any, Mapping[str, float]] = {
            (draw, "running"): issued for draw, issued in self.running.items()
        }
        for one in self._waiting:
            oldest[one.group.group_index, "buffered"] = {one.group.policy: one.oldest}
        return [
            {"group": draw, "phase": phase, "staleness": -_slack(own, self._versions, 0)}
            for (draw, phase), own in oldest.items()
        ]

    @property
    def going_on(self) -> list[int]:
        """The draws that run, and are not cancelled."""
        return [draw for draw in self.running if draw not in self.cancelling]

    @property
    def spent(self) -> int:
        """Draws that were issued since a batch was taken, and neither run nor wait."""
        return max(0, self._issued - len(self.going_on) - len(self._waiting))

    def has_room(self) -> bool:
        """Whether one more draw may be issued."""
        ahead = (self._max_staleness + 1) * self._size - self.in_training
        wanted = min(ahead, (self.stage.last_step - self._step) * self._size)
        extra = _oversample(self.stage) if wanted > 0 and not self.in_training else 0
        to_come = len(self._waiting) + len(self.running)
        return to_come < wanted + extra and self._issued < draws_per_batch(self.stage)

    def surplus(self, step: int) -> list[int]:
        """What still runs when the batch of ``step`` is taken, and can enter no later one."""
        ends = self._max_staleness == 0 or step >= self.stage.last_step
        return list(self.running) if ends else []

    def next_draw(self) -> tuple[int, bool]:
        """The draw to issue, and whether it was issued before the run was resumed."""
        again = bool(self.again)
        draw = self.again.pop(0) if again else self.next_group_index
        self.next_group_index = max(self.next_group_index, draw + 1)
        return draw, again

    def run(
        self, draw: int, policy: str, versions: Mapping[str, int] | None = None
    ) -> None:
        """A draw was issued, to train ``policy``; its oldest tokens may be of ``versions``, by
        default of those that are served."""
        self.running[draw] = versions or {policy: self._versions[policy]}
        self._issued += 1

    def end(self, draw: int) -> str:
        """A group ran, and has come to its end; why, if it was cancelled."""
        self.running.pop(draw, None)
        return self.cancelling.pop(draw, "")

    def keep(self, group: TrajectoryGroup) -> bool:
        """A finished group waits for a batch; False, and it does not, where it is too old for
        any.

        Raises:
            EngineError: it has a token of weights that were never published.
        """
        versions = [version for one in group.finished for version in one.policy_versions]
        newest = max(versions, default=-1)
        if newest > (sent := self._sent[group.policy]):
            raise EngineError(
                f"group {group.group_index} has a token of policy version {newest} of "
                f"{group.policy!r}, and none above {sent} was published; an engine tells versions "
                "that it was not sent: each must have one owner",
                retryable=False,
            )
        waiting = _Waiting(
            group, min(versions, default=math.inf), max(versions, default=math.inf)
        )
        kept = not self._too_old(waiting)
        if kept:
            self._waiting.append(waiting)
        return kept

    def may_close(self) -> bool:
        """Whether the next batch may be taken: with B groups, or with what there is where nothing
        runs and nothing may be issued."""
        if not self.running and not self.has_room():
            return True
        if len(self._waiting) < self._size:
            return False
        if self._in_draw_order:
            # A running group of a lower index belongs to this batch, whatever finished before it.
            last = sorted(one.group.group_index for one in self._waiting)[self._size - 1]
            return last < min(self.running, default=math.inf)
        return not self._waits or in_time(self._left_after_batch(), self._size)

    def take(self, step: int) -> list[TrajectoryGroup]:
        """The batch of ``step``: B groups or fewer, in the order in which they finished. With
        ``rollout.on_stale: wait`` those come first that must be trained first, and in a
        deterministic run those of the lowest indices."""
        if self._in_draw_order:
            self._waiting.sort(key=lambda one: one.group.group_index)
        elif self._waits:
            self._waiting.sort(key=self._slack)
        taken = self._waiting[: self._size]
        del self._waiting[: self._size]
        self.in_training = self._size  # a short batch makes no room before it is published
        self._step = step
        self._issued = len(self._waiting) + len(self.going_on)
        return [one.group for one in taken]

    def publish(self, versions: Mapping[str, int]) -> list[TrajectoryGroup]:
        """The batch in training has made room, and these versions are served.

        Returns:
            The groups that waited, and are now too old for any batch.
        """
        self.in_training = 0
        self._versions = self._sent = versions
        old = [one.group for one in self._waiting if self._too_old(one)]
        self._waiting = [one for one in self._waiting if not self._too_old(one)]
        return old

    def clear(self) -> list[TrajectoryGroup]:
        """The groups that waited, and wait no longer."""
        groups = self.groups
        self._waiting = []
        return groups

    def begin_publish(self, versions: Mapping[str, int]) -> list[int]:
        """These versions are sent to the engines next.

        Returns:
            The draws that run in vain from then on, as ``rollout.on_stale: drop`` has it.
        """
        self._sent = versions
        if self.stage.rollout.on_stale != "drop":
            return []
        return [
            draw
            for draw, issued in self.running.items()
            if _slack(issued, versions, self._max_staleness) < 0
        ]

    def cancel(self, draws: Iterable[int], reason: str) -> list[int]:
        """Draws that run are cancelled; those that were not before."""
        new = sorted(set(draws) - self.cancelling.keys())
        self.cancelling |= dict.fromkeys(new, reason)
        return new

    def _left_after_batch(self) -> list[float]:
        """The slacks of what stays outstanding when a batch is taken now."""
        issued = [*self.running.values()]
        # A saved group keeps its old tokens, so it is outstanding before it is issued again.
        issued += [self.saved[draw].versions for draw in self.again if draw in self.saved]
        waiting = sorted(map(self._slack, self._waiting))
        return waiting[self._size :] + [
            _slack(one, self._versions, self._max_staleness) for one in issued
        ]

    def _slack(self, waiting: _Waiting) -> float:
        own = {waiting.group.policy: waiting.oldest}
        return _slack(own, self._versions, self._max_staleness)

    def _too_old(self, waiting: _Waiting) -> bool:
        """With ``mask_tokens`` one token that can be trained is enough."""
        masks = self.stage.rollout.on_stale == "mask_tokens"
        decisive = waiting.newest if masks else waiting.oldest
        own = {waiting.group.policy: decisive}
        return _slack(own, self._versions, self._max_staleness) < 0


def _slack(
    oldest: Mapping[str, float], served: Mapping[str, int], max_staleness: int
) -> float:
    """Versions that may be published until a group must have been taken; below 0 it is too late.

    Args:
        oldest: of each policy that the group trains, the version of its oldest token.
        served: of each policy.
        max_staleness: η.
    """
    slacks = (max_staleness - (served[policy] - own) for policy, own in oldest.items())
    return min(slacks, default=max_staleness)
