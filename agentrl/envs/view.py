"""Episode view: what a reward function is given of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrl.envs.env import Env
from agentrl.envs.tool_env import ToolEnv
from agentrl.errors import EnvError
from agentrl.types import Message, Status, Task, Trajectory, Turn
from agentrl.types.env import MAIN_AGENT
from agentrl.types.user_code.values import private_copy, private_task


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeView:
    """An episode at its end, its environment still alive.

    Each reward function gets a copy of its own: what it changes, nobody else sees.

    Args:
        task: the problem, with its answer.
        messages: the whole conversation: the opening, each assistant's message, and what answered
            it.
        turns: the policy's turns with their calls and results.
        status: how it ended.
        env: the environment before ``close``; None where an episode is scored again from its
            record.
        agent: whose view it is: of several agents each trained one is scored by itself, with its
            own messages and turns.
    """

    task: Task
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    status: Status
    env: Env | None = None
    agent: str = MAIN_AGENT

    @classmethod
    def of(cls, trajectory: Trajectory) -> EpisodeView:
        """The episode of a trajectory, without its environment."""
        turns = trajectory.turns
        messages = [message for turn in turns for message in (*turn.observed, turn.message)]
        answered = [
            call.result for turn in turns[-1:] for call in turn.calls if call.result
        ]
        messages += [result.message() for result in answered]
        return cls(trajectory.task, tuple(messages), turns, trajectory.status)

    def private(self) -> EpisodeView:
        """A copy that shares nothing that can be changed but the environment.

        Raises:
            DataError: the task holds what cannot be copied.
        """
        return replace(
            self,
            task=private_task(self.task),
            messages=private_copy(self.messages),
            turns=private_copy(self.turns),
        )

    @property
    def final_text(self) -> str:
        """The text of the last message that the assistant wrote; empty where it wrote none."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                content = message["content"]
                return content if isinstance(content, str) else ""
        return ""

    @property
    def tool_state(self) -> Mapping[str, Any]:
        """What the episode's tools kept as ``ToolContext.state``.

        Raises:
            EnvError: the environment is no ``ToolEnv``, or the episode is scored from its record.
        """
        env = self.env.unwrapped if self.env else None
        if not isinstance(env, ToolEnv):
            found = "none, since the episode is scored from its record"
            raise EnvError(
                "EpisodeView.tool_state needs an environment that is a ToolEnv, got "
                f"{type(env).__name__ if env else found}; read the reward from turns or messages"
            )
        return env.tool_state

    @property
    def submitted(self) -> str | None:
        """The answer that a call of the built-in tool ``submit`` gave; None where there is none."""
        for turn in reversed(self.turns):
            for record in turn.calls:
                ended = record.result is not None and record.result.end
                answer = record.call.arguments.get("answer") if record.call else None
                if ended and isinstance(answer, str):
                    return answer
        return None
