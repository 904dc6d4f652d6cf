"""Person policy: a ``RolloutEngine`` of messages whose turns a person writes.

A line is the assistant's text. One that begins with ``{`` is a call as JSON, ``{"name": "add",
"arguments": {"a": 1}}``, and is read as a model's would be, so a faulty one comes back with what to
correct.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from agentrl.config import StageConfig
from agentrl.errors import ConfigError
from agentrl.rollouts import EpisodeKey
from agentrl.run.build import LiveObjects, rollout_spec
from agentrl.run.play.message_policies import MessagePolicy
from agentrl.run.play.player import Player
from agentrl.tools.parsers.hermes import HermesParser
from agentrl.types import (
    GenerateRequest,
    Message,
    ParsedMessage,
    Task,
    ToolSpec,
    Trajectory,
)

_PATIENCE_S = 7 * 86400.0


class PersonPolicy(MessagePolicy):
    """Shows what is new to the policy, and asks for its turn.

    Args:
        show: given the messages since the last turn, and the tools on offer where they changed.
        ask: gives a line.
    """

    def __init__(
        self,
        show: Callable[[Sequence[Message], Sequence[ToolSpec] | None], None],
        ask: Callable[[], Awaitable[str]],
    ) -> None:
        self._show = show
        self._ask = ask
        self._parser = HermesParser()
        self._num_shown = 0
        self._tools: tuple[ToolSpec, ...] = ()

    async def say(self, request: GenerateRequest) -> tuple[str, ParsedMessage]:
        """See ``MessagePolicy.say``."""
        changed = request.tools if request.tools != self._tools else None
        self._show(request.messages[self._num_shown :], changed)
        self._tools = request.tools
        # The turn that comes is the person's own, and is not shown again.
        self._num_shown = len(request.messages) + 1
        text = written_turn(await self._ask())
        return text, self._parser.parse(text, request.tools)


def written_turn(line: str) -> str:
    """The turn as a model of Hermes's format would have written it: JSON becomes a call."""
    line = line.strip()
    return f"<tool_call>\n{line}\n</tool_call>" if line.startswith("{") else line


async def play(stage: StageConfig, task: Task, policy: PersonPolicy) -> Trajectory:
    """An episode of the task without deadlines.

    Raises:
        ConfigError: an agent's own program plays the stage's episodes.
    """
    if stage.env.agent_command:
        raise ConfigError(
            "env.agent_command plays the episodes of this configuration, and a person cannot take "
            "its turns; name a configuration with an environment"
        )
    spec = rollout_spec(stage, LiveObjects(), None)
    episode = spec.episode.replace(
        episode_timeout_s=_PATIENCE_S, turn_timeout_s=_PATIENCE_S
    )
    async with Player(replace(spec, episode=episode, parser="hermes"), policy) as player:
        return await player.play(task, EpisodeKey(0, 0, label="play"))
