"""Rubric: a weighted list of reward functions."""

from __future__ import annotations

import asyncio
import logging
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrl.envs.async_env import ENV_THREADS
from agentrl.envs.score import Scope, Score, scope_of
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.types import REWARD_STYLE, Task, place_of_object
from agentrl.types.user_code.place import described
from agentrl.types.user_code.values import finite_number, is_series, private_copy, shown
from agentrl.types.user_code.wall import DeadlineError, call_user, failed_as, wall

logger = logging.getLogger(__name__)

RewardFn = Callable[[EpisodeView], float | Score | Awaitable[float | Score]]
"""A reward function: sync (it runs in a thread) or async."""

AnyRewardFn = (
    RewardFn
    | Callable[[EpisodeView], Sequence[float]]
    | Callable[[Sequence[EpisodeView]], Sequence[float | Score]]
)
"""A reward function, or one that ``turn_rewards`` or ``group_rewards`` marks; sync or async."""


@dataclass(frozen=True, slots=True)
class _RewardPart:
    name: str
    reward: Callable[..., Any]
    weight: float
    scope: Scope

    def scores(self, task: Task) -> bool:
        """Whether it scores the episodes of a task."""
        rule_based = getattr(self.reward, "rule_based", False)
        return not (rule_based and task.info.get(REWARD_STYLE) == "model")


class Rubric:
    """Scores an episode by parts, each the raw value of one function; the weights come in with the
    total. A part of weight 0 is a metric: it is logged and plays no part in the reward.

    Args:
        rewards: functions of weight 1, or ``(function, weight)`` pairs; their names are the parts'
            names.
        deadline_s: seconds that one function may take.

    Raises:
        ConfigError: two functions of one name, one called ``step``, or a weight that is not a
            finite number.
    """

    def __init__(
        self,
        rewards: Sequence[AnyRewardFn | tuple[AnyRewardFn, float]],
        *,
        deadline_s: float = 60.0,
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

    @property
    def group_parts(self) -> tuple[str, ...]:
        """The names of the parts that are functions of a whole group."""
        return tuple(part.name for part in self._parts if part.scope == "group")

    def build(self) -> Rubric:
        """Itself: a rubric may stand wherever one is built by its host."""
        return self

    async def score(self, view: EpisodeView) -> dict[str, float]:
        """Every part's value; see ``scores``."""
        return {name: score.value for name, score in (await self.scores(view)).items()}

    async def scores(self, view: EpisodeView) -> dict[str, Score]:
        """The value of every part that scores an episode, with its reason; the functions run at
        once. Parts that score groups are not among them (``group_scores``).

        Raises:
            RewardError: a function raised, took too long, or gave no finite number; named with the
                task. A failed rubric is never a reward of 0.
        """
        parts = [
            part for part in self._parts if part.scope != "group" and part.scores(view.task)
        ]
        # Nothing to run it beside.
        if len(parts) == 1:
            return {parts[0].name: await self._score(parts[0], view)}
        # All are waited for: no function goes on behind a score that failed.
        values = await asyncio.gather(
            *(self._score(part, view) for part in parts), return_exceptions=True
        )
        return dict(
            zip([part.name for part in parts], map(_unless_raised, values), strict=True)
        )

    async def group_scores(self, views: Sequence[EpisodeView]) -> list[dict[str, Score]]:
        """For each episode of a group, the value of every part that scores groups.

        Args:
            views: the finished episodes of one group, at least one.

        Raises:
            RewardError: as ``scores``, or a function gave another number of values.
        """
        task = views[0].task
        found: list[dict[str, Score]] = [{} for _ in views]
        for part in self._parts:
            if part.scope == "group" and part.scores(task):
                values = await self._values(part, views, len(views), "a group", "episode")
                for own, value in zip(found, values, strict=True):
                    own[part.name] = value
        return found

    async def close(self) -> None:
        """Ends what the functions hold on this event loop, such as a judge's connections: awaits
        the attribute ``close_connections`` of each that has one. They may be called again.
        """
        for part in self._parts:
            close_connections = getattr(part.reward, "close_connections", None)
            if close_connections is not None:
                what = f"reward {part.name!r}: close_connections raised"
                with wall(failed_as(RewardError, what)):
                    await close_connections()

    def total(
        self,
        parts: Mapping[str, float],
        *,
        step_reward: float = 0.0,
        step_weight: float = 1.0,
    ) -> float:
        """The episode's reward: the weighted parts, as far as they are given, and the weighted sum
        of its step rewards.
        """
        given = (part for part in self._parts if part.name in parts)
        return (
            sum(part.weight * parts[part.name] for part in given)
            + step_weight * step_reward
        )

    async def _score(self, part: _RewardPart, view: EpisodeView) -> Score:
        values = await self._values(part, [view], len(view.turns), "turns", "turn")
        if part.scope == "episode":
            return values[0]
        turns = tuple(score.value for score in values)
        return Score(math.fsum(turns), turns=turns)

    async def _values(
        self,
        part: _RewardPart,
        views: Sequence[EpisodeView],
        number: int,
        of: str,
        each: str,
    ) -> list[Score]:
        """What a function gives: one score of an episode, or ``number`` of its group or turns."""
        who = f"reward {part.name!r} of task {views[0].task.id!r}"
        failed = partial(_failed, part, who)
        # The functions run at once, and none may see what another one changes.
        own = [view.private() for view in views]
        given = await call_user(
            partial(part.reward, own if part.scope == "group" else own[0]),
            failed=failed,
            in_thread=ENV_THREADS.run,
            deadline_s=self._deadline_s,
            passes=(),
        )
        with wall(failed, passes=(RewardError,)):
            if part.scope == "episode":
                given = [given]
            else:
                self._check_number(part, given, number, f"{who}, of {of},", each)
            return [self._checked(part, value, who) for value in given]

    def _check_number(
        self, part: _RewardPart, given: Any, number: int, who: str, each: str
    ) -> None:
        is_list = is_series(given) and hasattr(given, "__len__")
        if not is_list or len(given) != number:
            found = len(given) if is_list else shown(given)
            raise RewardError(
                f"{who} must give a list of {number} numbers, one for each {each}, got {found}"
                + _in_brackets(place_of_object(part.reward))
            )

    def _checked(self, part: _RewardPart, given: Any, who: str) -> Score:
        score = given if isinstance(given, Score) else Score(given)
        value = score.value
        number = finite_number(value)
        if number is None:
            raise RewardError(
                f"{who} must be a finite number, got {shown(value)}; return one whatever the "
                "episode was" + _in_brackets(place_of_object(part.reward))
            )
        # By name, since NumPy calls its own ``bool_`` or, from version 2 on, ``bool``.
        if type(value).__name__ in ("bool", "bool_") and part.name not in self._bools:
            self._bools.add(part.name)
            logger.warning(
                "reward %r gave %r, a bool, which counts as %.1f; return a float",
                part.name,
                value,
                value,
                extra={"event": "reward_is_bool", "reward": part.name},
            )
        return Score(number, private_copy(score.why))


def _failed(part: _RewardPart, who: str, error: BaseException) -> RewardError:
    if isinstance(error, DeadlineError):
        place = _in_brackets(place_of_object(part.reward))
        return RewardError(f"{who} {error}; raise deadline_s{place}")
    return RewardError(f"{who} raised {described(error)}")


def _unless_raised(value: Score | BaseException) -> Score:
    if isinstance(value, BaseException):
        raise value
    return value


def _in_brackets(place: str) -> str:
    return f" ({place})" if place else ""


def _part(entry: AnyRewardFn | tuple[AnyRewardFn, float]) -> _RewardPart:
    reward, weight = entry if isinstance(entry, tuple) else (entry, 1.0)
    if not callable(reward):
        raise ConfigError(f"a reward must be a function of an EpisodeView, got {reward!r}")
    name = getattr(reward, "__name__", None) or type(reward).__name__
    if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        raise ConfigError(
            f"the weight of reward {name!r} must be a finite number, got {weight!r}"
        )
    return _RewardPart(name, reward, float(weight), scope_of(reward))
