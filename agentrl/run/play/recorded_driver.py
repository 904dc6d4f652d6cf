"""Recorded driver: steps a fresh environment with the actions of a stored episode."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from agentrl.envs import EnvSpec
from agentrl.rollouts import EnvDriver
from agentrl.rollouts.env_driver import ActingSeat
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import Action, Message, Status, ToolCall, Trajectory, Turn

NOT_ENDED = "not_ended"
"""The reason of a replay whose environment goes on where it ended the recorded episode."""

_ENDED_OUTSIDE = frozenset(
    {
        "context_tokens",
        "env_exception",
        "tool_crash",
        "episode_timeout",
        "image_token",
        "max_prompt_tokens",
        "max_response_tokens",
        "straggler",
        "turn_timeout",
    }
)
"""Reasons of truncations that no environment gives: they lie in tokens and clocks."""


@dataclass(frozen=True, slots=True)
class RecordedActions:
    """``DriverSpec`` of an episode whose actions are known.

    Args:
        env: builds the environment.
        recorded: the stored episode.
    """

    env: EnvSpec
    recorded: Trajectory

    @property
    def name(self) -> str:
        """See ``DriverSpec.name``."""
        return self.recorded.env

    def driver(self, turns: Any) -> RecordedDriver:
        """See ``DriverSpec.driver``."""
        return RecordedDriver(turns, self.env, self.recorded)


class RecordedDriver(EnvDriver):
    """Takes each action from a stored episode, as long as the environment wants one.

    Args:
        turns: the episode's turn generator, which generates nothing.
        spec: builds the environment.
        recorded: the stored episode.
    """

    def __init__(self, turns: TurnGenerator, spec: EnvSpec, recorded: Trajectory) -> None:
        super().__init__(turns, spec)
        self._recorded = recorded

    async def play(self) -> Status:
        """See ``EpisodeDriver.play``."""
        assert self._env is not None, "prepare comes first"
        for turn in self._recorded.turns:
            if self._end() is not None:
                break
            seat = self._seat(self._result.observation.agent)
            observed = await self._observe(seat)
            self._take(turn, seat, observed)
            # A turn without a step is the one in which the recorded episode was ended.
            if "step_s" not in turn.timings:
                return self._recorded.status
            self._result = await self._step(self._env, seat, _action(turn))
        end = self._end()
        await self._keep_last_observation()
        return end or self._end_outside()

    def _seat(self, agent: str) -> ActingSeat:
        """An agent of the episode; no engine is asked for its turns."""
        if agent not in self._seats:
            self._seats[agent] = ActingSeat(self._turns, self._turns.first_sequence())
        return self._seats[agent]

    def _take(self, turn: Turn, seat: ActingSeat, observed: tuple[Message, ...]) -> None:
        """Records the turn as generated again, without its effects."""
        builder = self._turns.builder
        seat.sequence = seat.sequence.extended((*observed, turn.message))
        builder.messages = seat.sequence.messages
        builder.conversations[turn.agent] = builder.messages
        builder.turns.append(
            replace(
                turn,
                observed=observed,
                observed_info=builder.last_info,
                calls=(),
                rewards={},
                timings={},
                info={},
                started_at=builder.clock.at(time.monotonic()),
                state=None,
                files={},
            )
        )
        builder.observe((), {})

    def _end_outside(self) -> Status:
        """The recorded end, where no environment has a part in it."""
        status = self._recorded.status
        outside = not status.finished or status.reason in _ENDED_OUTSIDE
        return status if outside else Status("truncated", NOT_ENDED)


def _action(turn: Turn) -> Action:
    calls = (
        ToolCall(entry["id"], entry["function"]["name"], entry["function"]["arguments"])
        for entry in turn.message.get("tool_calls", ())
    )
    problems = (record.problem for record in turn.calls if record.problem is not None)
    return Action(
        turn.text, turn.message, tuple(calls), tuple(problems), turn.finish_reason
    )
