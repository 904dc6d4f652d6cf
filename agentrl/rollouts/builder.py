"""A trajectory while it is being made: the sequence so far, and the turns that made it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.rollouts.spec import EpisodeKey
from agentrl.types import (
    Completion,
    Message,
    ParsedMessage,
    SamplingParams,
    Segment,
    Status,
    StepResult,
    Task,
    Trajectory,
    Turn,
    concat_ids,
    frozen_ints,
)

__all__ = ["TrajectoryBuilder", "state_key"]


def state_key(messages: Sequence[Message]) -> str:
    """16 hexadecimal digits that tell one observed history from another."""
    return hashlib.sha256(json.dumps(messages, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(slots=True)
class TrajectoryBuilder:
    """Grows by one turn at a time; ``finish`` freezes it."""

    key: EpisodeKey
    task: Task
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    parent: int | None = None
    ids: npt.NDArray[np.int32] = field(default_factory=lambda: concat_ids(()))
    prompt_tokens: int = 0
    restarts: int = 0
    timings: dict[str, float] = field(default_factory=dict)

    def begin_sequence(self) -> None:
        """The next turn starts a new sequence with its own PROMPT."""
        self.restarts += self.parent is not None
        self.parent, self.ids, self.prompt_tokens = None, concat_ids(()), 0

    def add_turn(
        self,
        *,
        observed: tuple[Message, ...],
        context: tuple[Segment, ...],
        completion: Completion,
        parsed: ParsedMessage,
        text: str,
        agent: str,
        sampling: SamplingParams,
    ) -> Turn:
        """Records what the model was given and what it made; the environment's answer comes by ``add_step``."""
        turn = Turn(
            index=len(self.turns),
            parent=self.parent,
            context=context,
            completion=completion.segments,
            text=text,
            message=parsed.message,
            observed=observed,
            finish_reason=completion.finish_reason,
            sampling=sampling,
            state_key=state_key(self.messages),
            agent=agent,
            stale_kv=completion.stale_kv,
            cached_tokens=completion.cached_tokens,
            timings=dict(completion.timings),
        )
        if self.parent is None:
            self.prompt_tokens = sum(len(segment) for segment in context)
        self.ids = frozen_ints(np.concatenate([self.ids, concat_ids(turn.segments)]))
        self.parent = turn.index
        self.turns.append(turn)
        self.messages.append(parsed.message)
        return turn

    def add_step(self, result: StepResult, seconds: float) -> None:
        """What the last turn caused."""
        last = self.turns[-1]
        self.turns[-1] = replace(
            last,
            calls=result.calls,
            rewards={"step": float(result.reward)} if result.reward else {},
            timings={**last.timings, "step_s": seconds},
            info=dict(result.info),
        )

    @property
    def min_version(self) -> int:
        """Versions never fall along a chain of turns: the highest of the current sequence."""
        index, highest = self.parent, 0
        while index is not None:
            turn = self.turns[index]
            highest = max([highest, *(s.policy_version for s in turn.completion if s.policy_version is not None)])
            index = turn.parent
        return highest

    @property
    def step_reward(self) -> float:
        return sum(sum(turn.rewards.values()) for turn in self.turns)

    def finish(
        self,
        status: Status,
        *,
        rewards: Mapping[str, float] | None = None,
        reward: float | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """The trajectory as it stands."""
        extra = {"restarts": self.restarts} if self.restarts else {}
        return Trajectory(
            task=self.task,
            draw=self.key.draw,
            sibling=self.key.sibling,
            attempt=self.key.attempt,
            purpose=self.key.purpose,
            turns=tuple(self.turns),
            status=status,
            rewards=dict(rewards or {}),
            reward=reward,
            label=self.key.label,
            timings=dict(self.timings),
            info={**extra, **(info or {})},
        )
