"""Seat: what the policy has in an environment of another library: its words go in, and what comes
back is told to it as a user's message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.envs.env import Env
from agentrl.tools import Tool, ToolExecutor
from agentrl.types import Action, Message, Observation, StepResult, Task
from agentrl.types.messages import without_thoughts

NO_ARGS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Moved:
    """What an action caused.

    Args:
        told: to the policy.
        reward: of the step.
        terminated, truncated: as of ``StepResult``.
        is_invalid: it was no action, and the environment did not see it.
    """

    told: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    is_invalid: bool = False


class SeatEnv(Env):
    """An environment of another library.

    It cannot be saved, so that a resumed run begins an episode again: what it holds need not
    survive pickling, or is a server's.

    Args:
        task: its messages open the conversation; ``info["env_args"]`` are joined to ``env_args``.
        env_args: of the environment.
    """

    def __init__(self, task: Task, env_args: Mapping[str, Any]) -> None:
        self.task = task
        # Arrow has the column in every row.
        self.env_args = {**env_args, **(task.info.get("env_args") or {})}

    def state_dict(self) -> None:
        """None: see the class."""
        return None


class SoloSeatEnv(SeatEnv):
    """One with a single seat, where the policy acts by its message or by a tool.

    A completion that was cut by its length is a move like any other, and ends nothing: what of it
    is no action costs a turn.
    """

    def __init__(self, task: Task, env_args: Mapping[str, Any]) -> None:
        super().__init__(task, env_args)
        self._executor = ToolExecutor([])
        self._called: list[dict[str, Any]] = []

    async def step(self, action: Action) -> StepResult:
        """What the environment made of the action, or what was wrong with it.

        ``info["invalid_action"]`` marks a turn that was no action.
        """
        self._called.clear()
        records = await self._executor.run(
            action.tool_calls, action.problems, episode_id=self.episode_id
        )
        answers = tuple(record.result.message() for record in records if record.result)
        moved = await self.moved(action)
        info = {"invalid_action": True} if moved.is_invalid else {}
        told: Message = {"role": "user", "content": moved.told}
        return StepResult(
            Observation(messages=(*answers, told)),
            reward=moved.reward,
            terminated=moved.terminated,
            truncated=moved.truncated,
            calls=records,
            info=info,
        )

    @abstractmethod
    async def moved(self, action: Action) -> Moved:
        """What the environment made of an action whose calls are answered."""

    def opened(self, told: str) -> Observation:
        """The task's messages and the first observation."""
        first: Message = {"role": "user", "content": told}
        return Observation(
            messages=(*self.task.messages, first), tools=self._executor.specs
        )

    @property
    def acts_by_tool(self) -> bool:
        """Whether the policy acts by a tool, and not by its message."""
        return bool(self._executor.specs)

    def act_by(self, make: Callable[[Callable[..., str]], Tool]) -> None:
        """The policy acts by the tool that ``make`` makes of what notes a call."""

        def act(**fields: Any) -> str:
            self._called.append(fields)
            return "Done."

        self._executor = ToolExecutor([make(act)])


def said_aloud(action: Action) -> str:
    """A message's text without thoughts: nobody else hears these."""
    return without_thoughts(str(action.message["content"] or ""))
