"""Admission: bounds on the groups in flight, and the state of them that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentrl.controller.samplers.prompt_sampler import SamplerState
from agentrl.rollouts import GroupState
from agentrl.types import TrajectoryGroup

StaleRule = Literal["drop", "mask_tokens"]
"""What becomes of a group with tokens that are too old: it is dropped, or those of its tokens are
not trained."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Bounds on what is in flight, in groups.

    Args:
        batch_groups: B, groups a batch.
        group_size: rollouts of a group that must come to their end.
        last_step: no more is in flight than its batch and those before it need.
        oversample_per_group: played beside them; those that still play when the others have
            finished are cut off.
        max_staleness: η; a draw is issued while in_training + buffered + running < (η + 1)·B.
        on_stale: what becomes of groups with older tokens.
        max_resample_ratio: at most ``max_resample_ratio·B`` draws beyond those are issued for one
            batch.
        oversample: draws in flight beyond those while no batch is in training; a batch closes with
            the B groups that finish first, and what then runs for nothing is cancelled.
        greedy_baseline: each group has a greedy rollout beside the others, which is never trained.
        in_draw_order: batches are closed in draw order, and draws are issued only while the loop
            waits for them, so that nothing is in flight at a checkpoint (``run.deterministic``).
    """

    batch_groups: int
    group_size: int
    last_step: int
    oversample_per_group: int = 0
    max_staleness: int = 0
    on_stale: StaleRule = "drop"
    max_resample_ratio: float = 0.0
    oversample: int = 0
    in_draw_order: bool = False
    greedy_baseline: bool = False

    @property
    def rollouts_per_group(self) -> int:
        """All rollouts of a group."""
        return self.group_size + self.oversample_per_group + self.greedy_baseline

    @property
    def draws_per_batch(self) -> int:
        """Draws that may be in flight or spent when a batch closes."""
        return (
            (self.max_staleness + 1) * self.batch_groups
            + int(self.max_resample_ratio * self.batch_groups)
            + self.oversample
        )

    def has_room(self, *, step: int, in_training: int, to_come: int, issued: int) -> bool:
        """Whether one more draw may be issued.

        Args:
            step: the batch taken last.
            in_training: groups of it that are trained now.
            to_come: groups that run or wait.
            issued: draws in flight or spent since that batch was taken.
        """
        ahead = (self.max_staleness + 1) * self.batch_groups - in_training
        wanted = min(ahead, (self.last_step - step) * self.batch_groups)
        extra = self.oversample if wanted > 0 and not in_training else 0
        return to_come < wanted + extra and issued < self.draws_per_batch

    def runs_for_nothing(self, step: int) -> bool:
        """Whether what still runs when the batch of ``step`` is taken can enter no later one."""
        return self.max_staleness == 0 or step >= self.last_step

    def too_old(self, versions: list[int], served: int) -> bool:
        """Whether a group of tokens of these versions can be trained no more, now that ``served``
        is the newest."""
        decisive = min if self.on_stale == "drop" else max
        return bool(versions) and decisive(versions) < served - self.max_staleness


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
