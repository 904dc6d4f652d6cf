"""Episode view: what a reward function is given of an episode."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.envs.env import Env
from agentrl.types import Message, Status, Task, Turn


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeView:
    """An episode at its end, its environment still alive.

    Args:
        task: the problem, with its answer.
        messages: the whole conversation: the opening, each assistant's message, and what answered
            it.
        turns: the policy's turns with their calls and results.
        status: how it ended.
        env: the environment before ``close``; None where an episode is scored again from its
            record.
    """

    task: Task
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    status: Status
    env: Env | None = None

    @property
    def final_text(self) -> str:
        """The text of the last message that the assistant wrote; empty where it wrote none."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                content = message["content"]
                return content if isinstance(content, str) else ""
        return ""

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
