"""Play command: ``agentrl play``."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.terminal import say

if TYPE_CHECKING:
    from agentrl.types import Message, ToolSpec, Trajectory


def play_command(config: Path, /, *overrides: str, task: str | None = None) -> int:
    """Play an episode yourself, in place of the policy.

    Each turn is a line: the assistant's text, or a call as JSON, {"name": "add", "arguments":
    {"a": 1}}. An empty line is the empty answer. At the end the rewards are shown. Ctrl-D or Ctrl-C
    leaves the episode. It ends with 0 where the episode finished, 3 where your own code exited, and
    otherwise 1.

    Parameters
    ----------
    config
        A configuration file: its environment, tools, limits and rewards hold.
    overrides
        Settings that go before the file's, as key=value.
    task
        The id of a task of data.train, or its number from 0; by default the first.
    """
    from agentrl.cli.try_command import task_named
    from agentrl.config import load_config
    from agentrl.run.play.person_policy import PersonPolicy, play
    from agentrl.run.policy_source import played_stage

    stage = played_stage(load_config(config, overrides, trains=False))
    chosen = task_named(stage, task)
    say(f"task {chosen.id} ({chosen.data_source})")
    policy = PersonPolicy(_show, _LineReader().line)
    played = asyncio.run(play(stage, chosen, policy))
    _print_end(played)
    return 0 if played.status.finished else int(played.info.get("exit_code", 1))


class _LineReader:
    """Lines of standard input, awaited without a thread: one that waits for the terminal could not
    be ended.
    """

    def __init__(self) -> None:
        self._read = b""
        self._ended = False

    async def line(self) -> str:
        """The next line.

        Raises:
            KeyboardInterrupt: the input has ended.
        """
        print("you: ", end="", flush=True)
        while b"\n" not in self._read and not self._ended:
            await self._more()
        if not self._read:
            raise KeyboardInterrupt("the input has ended")
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    async def _more(self) -> None:
        number = sys.stdin.fileno()
        # A regular file can always be read, and an event loop cannot watch one.
        if not stat.S_ISREG(os.fstat(number).st_mode):
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(number, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(number)
        more = os.read(number, 65536)
        self._ended = not more
        self._read += more


def _show(messages: Sequence[Message], tools: Sequence[ToolSpec] | None) -> None:
    from agentrl.cli.views.message_text import print_message
    from agentrl.store.json_text import to_json

    for tool in tools or ():
        say(f"  tool {tool.name}: {tool.description} {to_json(tool.parameters)}")
    for message in messages:
        print_message(message)


def _print_end(trajectory: Trajectory) -> None:
    last = trajectory.turns[-1] if trajectory.turns else None
    answered = [record.result for record in last.calls if record.result] if last else []
    _show([*(result.message() for result in answered), *_unanswered(trajectory)], None)
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in trajectory.rewards.items())
    detail = f": {trajectory.status.detail}" if trajectory.status.detail else ""
    say(f"{trajectory.status}{detail}   reward {reward}{f' = {parts}' if parts else ''}")
    for part, why in trajectory.reasons.items():
        say(f"  why {part}: {why}")


def _unanswered(trajectory: Trajectory) -> Sequence[Message]:
    """What the environment said last, beside the answers to calls."""
    return [message for message in trajectory.last_observed if message["role"] != "tool"]
