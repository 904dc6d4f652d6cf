"""Benchmark episodes: a tiny model, an environment with a slow tool, and a timeline."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.engines import RolloutEngine
from agentrl.envs import Env, EpisodeView, Rubric
from agentrl.rollouts import GroupOutcome
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import (
    Action,
    Completion,
    EngineInfo,
    GenerateRequest,
    Message,
    Observation,
    StepResult,
    Task,
)

__all__ = [
    "Beginnings",
    "Counted",
    "TimedEnv",
    "always_one",
    "failures",
    "tasks",
    "tiny_model",
]

_NORMAL_P99 = 2.3263
_QUESTION: Message = {"role": "user", "content": "what does the tool say now?"}
_ANSWER: Message = {"role": "user", "content": "it says that you should go on"}


def tiny_model(folder: Path, seed: int) -> Path:
    """A model of random weights with a tokenizer that knows the words of these episodes."""
    build_tiny_model(
        folder, _conversations(), seed=seed, num_demonstrations=50, vocab_size=400
    )
    return folder


def _conversations() -> Iterator[dict[str, Any]]:
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "look", "arguments": {"place": "here"}},
    }
    while True:
        yield {
            "messages": [
                _QUESTION,
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {
                    "role": "tool",
                    "content": "nothing is here",
                    "tool_call_id": "call_0",
                    "name": "look",
                },
                {"role": "assistant", "content": "nothing"},
            ]
        }


def tasks(number: int) -> list[Task]:
    return [Task(str(index), (_QUESTION,)) for index in range(number)]


class _One:
    def build(self) -> Rubric:
        return Rubric([_reward])


def _reward(view: EpisodeView) -> float:
    return 1.0


always_one = _One()
"""Builds a rubric that costs nothing."""


@dataclass(slots=True)
class Beginnings:
    """When episodes began, and how many were in flight at most."""

    times: list[float] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0

    def begin(self) -> None:
        self.times.append(time.perf_counter())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)


class TimedEnv(Env):
    """Episodes of a fixed number of turns, between which a tool takes a time drawn from a lognormal
    distribution.

    Args:
        task: names the draw.
        beginnings: told of the episode.
        turns: model calls of an episode.
        median_s: of a tool's time; 0 is an instant tool.
        p99_s: of a tool's time.
        barrier: where all episodes meet before and after each tool, as in a loop that goes turn by
            turn.
    """

    def __init__(
        self,
        task: Task,
        *,
        beginnings: Beginnings,
        turns: int,
        median_s: float = 0.0,
        p99_s: float = 0.0,
        barrier: asyncio.Barrier | None = None,
    ) -> None:
        self._task = task
        self._beginnings = beginnings
        self._turns = turns
        self._barrier = barrier
        self._random = random.Random(task.id)
        self._median_s = median_s
        self._sigma = math.log(p99_s / median_s) / _NORMAL_P99 if median_s else 0.0

    async def reset(self, *, seed: int) -> Observation:
        self._beginnings.begin()
        return Observation(self._task.messages)

    async def step(self, action: Action) -> StepResult:
        self._turns -= 1
        if not self._turns:
            self._beginnings.in_flight -= (
                1  # what follows, its score and its end, is no place that it takes
            )
            return StepResult(Observation(), terminated=True)
        if self._barrier is not None:
            await self._barrier.wait()
        if self._median_s:
            await asyncio.sleep(
                self._random.lognormvariate(math.log(self._median_s), self._sigma)
            )
        if self._barrier is not None:
            await self._barrier.wait()
        return StepResult(Observation((_ANSWER,)))


class Counted:
    """A ``RolloutEngine`` that notes when each completion ended, and how many tokens it had."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.tokens: list[tuple[float, int]] = []
        self._engine = engine

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await self._engine.generate(request)
        self.tokens.append((time.perf_counter(), completion.usage.completion_tokens))
        return completion

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._engine.abort(request_ids)

    async def release(self, session_id: str) -> None:
        await self._engine.release(session_id)

    def info(self) -> EngineInfo:
        return self._engine.info()

    def per_second(self, start: float, end: float) -> float:
        """Tokens a second of the completions that ended between two moments."""
        return sum(count for when, count in self.tokens if start < when <= end) / (
            end - start
        )


def failures(outcomes: Sequence[GroupOutcome]) -> int:
    """Episodes that did not finish; a figure over them would be of something else."""
    return sum(
        not t.status.finished for outcome in outcomes for t in outcome.group.trajectories
    )
