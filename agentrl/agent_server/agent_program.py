"""An agent program that plays an episode: a process that asks the policy by way of its base URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.agent_server.driver import ServedDriver
from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.server import PolicyServer
from agentrl.errors import ConfigError, EnvError
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import Status, Turn

__all__ = ["AgentProgramSpec", "ProgramPlayer"]

_TAIL_BYTES = 4096
_LEAVE_S = 2.0
_PIPE_LEFT_OPEN_S = 1.0
_NOT_OURS = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ORGANIZATION")


@dataclass(frozen=True, slots=True)
class AgentProgramSpec:
    """An agent program, started once an episode.

    It reads the task from standard input as one JSON object (``id``, ``messages``, ``data_source``, ``info``; never the
    answer) and asks the policy at OPENAI_BASE_URL with OPENAI_API_KEY. AGENTRL_EPISODE_URL is where it may POST
    ``/reward``. It ends the episode by exiting with status 0.

    Args:
        command: the program and its arguments.
        cwd: the folder that it runs in.
        environment: further variables of its environment.
        model: the value of OPENAI_MODEL.
    """

    command: tuple[str, ...]
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str = "policy"

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError(
                "env.agent_command must name a program and its arguments, got an empty list"
            )

    def driver(self, turns: TurnGenerator) -> ProgramPlayer:
        """See ``DriverSpec.player``."""
        return ProgramPlayer(turns, self)

    def check(self) -> str:
        """The file that will be run.

        Raises:
            ConfigError: this machine has none of that name that may be run.
        """
        name = self.command[0]
        in_folder = os.path.join(self.cwd or os.getcwd(), name) if os.sep in name else name
        found = shutil.which(in_folder, path=self.variables("", "")["PATH"])
        if found is None:
            raise ConfigError(
                f"env.agent_command={list(self.command)} must name a program that may be run from {self.cwd or os.getcwd()}, "
                f"and {name!r} is none; give its path, or make it executable"
            )
        return found

    def variables(self, url: str, key: str) -> dict[str, str]:
        """The program's environment: this process's, with the episode's endpoint in it, reached without any proxy, and
        with the folder of this interpreter first in PATH, so that ``python`` is the one that has agentrl."""
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        direct = [*filter(None, [os.environ.get("NO_PROXY", "")]), "127.0.0.1", "localhost"]
        return {
            "OPENAI_AGENTS_DISABLE_TRACING": "1",  # that SDK sends its traces to OpenAI, with a key which is none there
            **inherited,
            **self.environment,
            "PATH": os.pathsep.join(
                [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
            ),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",  # LiteLLM's and LangChain's name for it
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": self.model,
            "AGENTRL_EPISODE_URL": url,
            "NO_PROXY": ",".join(direct),
            "no_proxy": ",".join(direct),
        }


class ProgramPlayer(ServedDriver):
    """Starts the program and waits until it has exited or the episode is over.

    Args:
        turns: of the episode.
        spec: the program.
    """

    def __init__(self, turns: TurnGenerator, spec: AgentProgramSpec) -> None:
        super().__init__(turns, turns.parts.service(PolicyServer))
        self._spec = spec
        self._process: asyncio.subprocess.Process | None = None
        self._said: list[asyncio.Task[bytes]] = []

    async def _wait(self, episode: ServedEpisode) -> Status:
        """Terminated where the program exits with 0.

        Raises:
            ConfigError: the program cannot be started.
            EnvError: it exited with another status, or without ever asking.
        """
        process = await self._start()
        exited = asyncio.create_task(process.wait())
        ended = asyncio.create_task(episode.until_end())
        try:
            await asyncio.wait({exited, ended}, return_when=asyncio.FIRST_COMPLETED)
            return ended.result() if ended.done() else await self._by_exit(exited.result(), episode)
        finally:
            for task in (exited, ended):
                task.cancel()

    async def close(self) -> None:
        """Ends the program and all that it started, then the episode."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _LEAVE_S)
            _signal_group(process.pid, signal.SIGKILL)
            await process.wait()
        for task in self._said:
            task.cancel()
        await super().close()

    async def _start(self) -> asyncio.subprocess.Process:
        spec, task = self._spec, self.turns.builder.task
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=spec.cwd,
                env=spec.variables(self.url, self.episode_id),
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"env.agent_command={list(spec.command)} cannot be started in {spec.cwd or os.getcwd()}: "
                f"{error.strerror or error}; name a program that this machine has"
            ) from error
        self._process = process
        stdin, outputs = process.stdin, (process.stdout, process.stderr)
        assert stdin is not None, "a pipe was asked for"
        self._said = [
            asyncio.create_task(_tail(stream)) for stream in outputs if stream is not None
        ]
        told = {
            "id": task.id,
            "messages": task.messages,
            "data_source": task.data_source,
            "info": dict(task.info),
        }
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # a program need not read its task
            stdin.write(json.dumps(told).encode())
            await stdin.drain()
            stdin.close()
        return process

    async def _by_exit(self, code: int, episode: ServedEpisode) -> Status:
        """Whose doing an exit is: a conversation that was too long is the policy's, any other failure a fault."""
        builder = self.turns.builder
        if code == 0 and builder.turns:
            return Status("terminated")
        if code != 0 and episode.no_room is not None:
            return episode.no_room
        if code != 0 and (why := _by_the_policy(builder.turns)):
            return Status("truncated", why, await self._last_words())
        builder.fault = f"turn {len(builder.turns)}: exit status {code}"
        how = (
            "ended without asking the policy anything"
            if code == 0
            else f"exited with status {code}"
        )
        raise EnvError(
            f"the agent program {self._spec.command[0]!r} {how}; {await self._last_words()}"
        )

    async def _last_words(self) -> str:
        """The end of what it wrote, where it wrote anything."""
        # what the program started may hold its pipes open
        await asyncio.wait(self._said, timeout=_PIPE_LEFT_OPEN_S)
        texts = [
            task.result().decode(errors="replace").strip() if task.done() else ""
            for task in self._said
        ]
        out, err = texts
        return (
            f"its standard error ends with: {err}"
            if err
            else f"its output ends with: {out or '(nothing)'}"
        )


def _by_the_policy(turns: Sequence[Turn]) -> str:
    """Why a program could not go on from its last turn, where that is the policy's doing; else nothing."""
    if not turns:
        return ""
    if turns[-1].finish_reason == "length":
        return "length"
    return "breach" if turns[-1].info.get("breaches") else ""


async def _tail(stream: asyncio.StreamReader) -> bytes:
    """The last bytes of a stream, which is read to its end so that the program never waits for a reader."""
    kept = b""
    while chunk := await stream.read(65536):
        kept = (kept + chunk)[-_TAIL_BYTES:]
    return kept


def _signal_group(pid: int, number: signal.Signals) -> None:
    """To the program and what it started in its session; one that is gone already may refuse it (macOS)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
