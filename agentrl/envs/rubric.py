"""Rubric: a weighted list of reward functions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.envs.async_env import ENV_THREADS
from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.types import place_of_object
from agentrl.types.user_code.function import described

logger = logging.getLogger(__name__)

RewardFn = Callable[[EpisodeView], float | Score | Awaitable[float | Score]]
"""A reward function: sync (it runs in a thread) or async."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    reward: RewardFn
    weight: float


class Rubric:
    """Scores an episode by parts, each the raw value of one function; the weights come in with the
    total.

    Args:
        rewards: functions of weight 1, or ``(function, weight)`` pairs; their names are the parts'
            names.
        deadline_s: seconds that one function may take.

    Raises:
        ConfigError: two functions of one name, one called ``step``, or a weight that is not a
            finite number.
    """

    def __init__(
        self, rewards: Sequence[RewardFn | tuple[RewardFn, float]], *, deadline_s: float = 60.0
    ) -> None:
        parts = [_part(entry) for entry in rewards]
        names = [part.name for part in parts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"rewards need different names, got {name!r} twice; rename one of the functions"
                )
        if "step" in names:
            raise ConfigError(
                "the part 'step' is the sum of the environment's step rewards; rename the function"
            )
        if not deadline_s > 0:
            raise ConfigError(f"a rubric's deadline_s must be above 0, got {deadline_s!r}")
        self._parts = tuple(parts)
        self._deadline_s = deadline_s
        self._bools: set[str] = set()

    @property
    def bools(self) -> tuple[str, ...]:
        """Parts whose function gave a bool so far, which counts as 1.0 or 0.0."""
        return tuple(sorted(self._bools))

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each part, in order."""
        return {part.name: part.weight for part in self._parts}

    def build(self) -> Rubric:
        """Itself: a rubric may stand wherever one is built by its host."""
        return self

    async def score(self, view: EpisodeView) -> dict[str, float]:
        """Every part's value; see ``scores``."""
        return {name: score.value for name, score in (await self.scores(view)).items()}

    async def scores(self, view: EpisodeView) -> dict[str, Score]:
        """Every part's value with its reason; the functions run at once.

        Raises:
            RewardError: a function raised, took too long, or gave no finite number; named with the
                task. A failed rubric is never a reward of 0.
        """
        if len(self._parts) == 1:  # nothing to run it beside
            return {self._parts[0].name: await self._score(self._parts[0], view)}
        values = await asyncio.gather(
            *(self._score(part, view) for part in self._parts), return_exceptions=True
        )
        for value in values:
            if isinstance(value, BaseException):
                raise value
        return dict(zip(self.weights, values, strict=True))  # type: ignore[arg-type]

    def total(
        self, parts: Mapping[str, float], *, step_reward: float = 0.0, step_weight: float = 1.0
    ) -> float:
        """The episode's reward: the weighted parts and the weighted sum of its step rewards."""
        return (
            sum(part.weight * parts[part.name] for part in self._parts) + step_weight * step_reward
        )

    async def _score(self, part: _Part, view: EpisodeView) -> Score:
        who = f"reward {part.name!r} of task {view.task.id!r}"
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                given = await _call(part.reward, view)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise RewardError(
                    f"{who} took longer than {self._deadline_s:g} s; raise deadline_s"
                ) from error
            raise RewardError(f"{who} raised {described(error)}") from error
        score = given if isinstance(given, Score) else Score(given)
        value = score.value
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise RewardError(
                f"{who} must be a finite number, got {value!r}; return one whatever the episode was"
                + _in_brackets(place_of_object(part.reward))
            )
        if isinstance(value, bool) and part.name not in self._bools:
            self._bools.add(part.name)
            logger.warning(
                "reward %r gave %r, a bool, which counts as %.1f; return a float",
                part.name,
                value,
                value,
                extra={"event": "reward_is_bool", "reward": part.name},
            )
        return Score(float(value), score.why)


async def _call(reward: RewardFn, view: EpisodeView) -> Any:
    if inspect.iscoroutinefunction(reward):
        return await reward(view)
    value = await ENV_THREADS.run(lambda: reward(view))
    return await value if inspect.isawaitable(value) else value


def _in_brackets(place: str) -> str:
    return f" ({place})" if place else ""


def _part(entry: RewardFn | tuple[RewardFn, float]) -> _Part:
    reward, weight = entry if isinstance(entry, tuple) else (entry, 1.0)
    if not callable(reward):
        raise ConfigError(f"a reward must be a function of an EpisodeView, got {reward!r}")
    name = getattr(reward, "__name__", None) or type(reward).__name__
    if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        raise ConfigError(f"the weight of reward {name!r} must be a finite number, got {weight!r}")
    return _Part(name, reward, float(weight))
