"""Admission: bounds on the groups in flight, and the state of them that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentrl.config import StageConfig
from agentrl.rollouts import GroupState
from agentrl.rollouts.samplers.prompt_sampler import SamplerState
from agentrl.types import TrajectoryGroup

StaleRule = Literal["wait", "drop", "mask_tokens"]
"""A batch waits for groups that would become too old, or they are dropped, or those of their tokens
that are too old are not trained."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Bounds on what is in flight, in groups, as the sections ``rollout`` and ``train`` set them.

    With B = ``train.batch_prompts`` and η = ``rollout.max_staleness`` a draw is issued while
    in_training + buffered + running < (η + 1)·B. ``rollout.oversample`` adds draws while no batch
    is in training, and what then runs for nothing is cancelled. With ``run.deterministic`` draws
    are issued only while the loop waits for them, so that nothing is in flight at a checkpoint.

    Args:
        stage: whole; no more is in flight than the batches up to its last step need.
    """

    stage: StageConfig

    @property
    def oversample(self) -> int:
        """Draws in flight beyond those of the batches."""
        return int(self.stage.rollout.oversample * self.stage.train.batch_prompts)

    @property
    def draws_per_batch(self) -> int:
        """Draws that may be in flight or spent when a batch closes."""
        rollout, size = self.stage.rollout, self.stage.train.batch_prompts
        refill = int(rollout.max_resample_ratio * size)
        return (rollout.max_staleness + 1) * size + refill + self.oversample

    def has_room(self, *, step: int, in_training: int, to_come: int, issued: int) -> bool:
        """Whether one more draw may be issued.

        Args:
            step: the batch taken last.
            in_training: groups of it that are trained now.
            to_come: groups that run or wait.
            issued: draws in flight or spent since that batch was taken.
        """
        size = self.stage.train.batch_prompts
        ahead = (self.stage.rollout.max_staleness + 1) * size - in_training
        wanted = min(ahead, (self.stage.last_step - step) * size)
        extra = self.oversample if wanted > 0 and not in_training else 0
        return to_come < wanted + extra and issued < self.draws_per_batch

    def runs_for_nothing(self, step: int) -> bool:
        """Whether what still runs when the batch of ``step`` is taken can enter no later one."""
        return self.stage.rollout.max_staleness == 0 or step >= self.stage.last_step


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
