"""Agent program (harness): a process that plays an episode by requests to the policy's base URL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.agent_server.server import PolicyServer, ServedDriver
from agentrl.errors import ConfigError, DataError, EnvError
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import Status, Task
from agentrl.types.machine import keep_end, program_path, told_end
from agentrl.types.user_code.values import to_json

_LEAVE_S = 2.0
_PIPE_LEFT_OPEN_S = 1.0
_NOT_OURS = (
    *("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ORGANIZATION"),
    *("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_OAUTH_TOKEN"),
    *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
)
_QUIET = {
    # otherwise that SDK sends its traces to OpenAI, with a key that is invalid there
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
"""Variables that are set unless they are set already: nothing is sent to the makers of programs."""


@dataclass(frozen=True, slots=True)
class AgentProgramSpec:
    """An agent program, started once an episode.

    - It reads the task from standard input as one JSON object: ``id``, ``messages``,
      ``data_source`` and ``info``, never the answer.
    - It sends its requests to OPENAI_BASE_URL with OPENAI_API_KEY, or to ANTHROPIC_BASE_URL with
      ANTHROPIC_API_KEY, and may POST ``/reward`` to AGENTRL_EPISODE_URL.
    - It ends the episode by exiting with status 0.

    Args:
        command: the program and its arguments.
        cwd: its working directory.
        environment: additional environment variables.
        model: the value of OPENAI_MODEL and ANTHROPIC_MODEL.
        strict_keys, loose_history: see ``ServedEpisode``.
    """

    command: tuple[str, ...]
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str = "policy"
    strict_keys: bool = False
    loose_history: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError(
                "AgentProgramSpec.command must name a program and its arguments, got an empty list"
            )

    @property
    def name(self) -> str:
        """The file that is run: the first argument with a file's ending, or else the program."""
        words = (word for word in self.command[1:] if " " not in word)
        script = next(
            (word for word in words if os.path.splitext(word)[1]), self.command[0]
        )
        return os.path.basename(script)

    def driver(self, turns: TurnGenerator) -> ProgramDriver:
        """See ``DriverSpec.driver``."""
        return ProgramDriver(turns, self)

    def check(self) -> str:
        """The path of the program.

        Raises:
            ConfigError: this machine has no executable of that name.
        """
        name = self.command[0]
        folder = self.cwd or os.getcwd()
        in_folder = os.path.join(folder, name) if os.sep in name else name
        found = shutil.which(in_folder, path=program_path())
        if found is None:
            raise ConfigError(
                f"AgentProgramSpec.command={list(self.command)} must name a program that may be "
                f"run from {folder}, and {name!r} is none; give its path, or make "
                "it executable"
            )
        return found

    def variables(self, url: str, key: str) -> dict[str, str]:
        """The program's environment: this process's, with the episode's endpoint added.

        - The endpoint is reached without a proxy.
        - This interpreter's folder is first in PATH, so that ``python`` can import agentrl.
        """
        inherited = {
            name: value for name, value in os.environ.items() if name not in _NOT_OURS
        }
        direct = ",".join(
            filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"])
        )
        return {
            **_QUIET,
            **inherited,
            **self.environment,
            "PATH": program_path(),
            "OPENAI_BASE_URL": f"{url}/v1",
            # LiteLLM's and LangChain's name for it
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": self.model,
            # its clients add /v1 themselves
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "ANTHROPIC_MODEL": self.model,
            "AGENTRL_EPISODE_URL": url,
            "NO_PROXY": direct,
            "no_proxy": direct,
        }


class ProgramDriver(ServedDriver):
    """Starts the program and waits until it exits or the episode ends.

    Args:
        turns: the episode's turn generator.
        spec: the program.
    """

    def __init__(self, turns: TurnGenerator, spec: AgentProgramSpec) -> None:
        server = turns.context.service(PolicyServer)
        super().__init__(
            turns, server, strict_keys=spec.strict_keys, loose_history=spec.loose_history
        )
        self._spec = spec
        self._process: asyncio.subprocess.Process | None = None
        # Read standard output and standard error to their ends; cancelled by ``close``.
        self._said, self._errors = bytearray(), bytearray()
        self._outputs: list[asyncio.Task[None]] = []

    async def _wait(self) -> Status:
        """Waits for the exit or the end; an exit with 0 terminates the episode.

        Raises:
            ConfigError: the program cannot be started.
            DataError: the task is no JSON.
            EnvError: it exited with another status, or without a request.
        """
        process = await self._start()
        exited = asyncio.create_task(process.wait())
        ended = asyncio.create_task(self.episode.until_end())
        try:
            await asyncio.wait({exited, ended}, return_when=asyncio.FIRST_COMPLETED)
            # A request may have ended the episode just before the program exits: the episode's word
            # counts.
            return ended.result() if ended.done() else await self._by_exit(exited.result())
        finally:
            for task in (exited, ended):
                task.cancel()

    async def close(self) -> None:
        """Ends the program and its process group, then the episode."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _LEAVE_S)
            # What the program started may outlive it: the group is ended even where the program
            # left by itself.
            _signal_group(process.pid, signal.SIGKILL)
            await process.wait()
        for task in self._outputs:
            task.cancel()
        await super().close()

    async def _start(self) -> asyncio.subprocess.Process:
        spec = self._spec
        task_json = _task_json(self.turns.builder.task)
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=spec.cwd,
                env=spec.variables(self.url, self.episode_id),
                # Its own process group, by which it is ended with all that it started.
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"AgentProgramSpec.command={list(spec.command)} cannot be started in "
                f"{spec.cwd or os.getcwd()}: {error.strerror or error}; name a program that this "
                f"machine has"
            ) from error
        self._process = process
        stdin = process.stdin
        assert stdin is not None, "a pipe was asked for"
        self._outputs = [
            asyncio.create_task(keep_end(stream, kept))
            for stream, kept in (
                (process.stdout, self._said),
                (process.stderr, self._errors),
            )
            if stream is not None
        ]
        # a program need not read its task
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(task_json.encode())
            await stdin.drain()
            stdin.close()
        return process

    async def _by_exit(self, code: int) -> Status:
        """The status after an exit.

        A conversation that was too long is a truncation. Any other failure is the program's fault.
        """
        builder = self.turns.builder
        if code == 0 and builder.turns:
            return Status("terminated")
        if code and self.episode.context_status is not None:
            return self.episode.context_status
        if code and builder.turns:
            last = builder.turns[-1]
            if last.finish_reason == "length" or last.info.get("breaches"):
                reason = "length" if last.finish_reason == "length" else "breach"
                return Status("truncated", reason, await self._output_end())
        builder.fault = f"turn {len(builder.turns)}: exit status {code}"
        how = (
            f"exited with status {code}"
            if code
            else "ended without asking the policy anything"
        )
        raise EnvError(
            f"the agent program {self._spec.command[0]!r} {how}; {await self._output_end()}"
        )

    async def _output_end(self) -> str:
        """The end of the program's output, for an error message."""
        # a process that the program started may hold its pipes open
        await asyncio.wait(self._outputs, timeout=_PIPE_LEFT_OPEN_S)
        said = self._said.decode(errors="replace").strip() or "(nothing)"
        return told_end(self._errors) or f"its output ends with: {said}"


def _task_json(task: Task) -> str:
    """What the program reads, in ASCII: whatever its encoding, and half of a surrogate pair too."""
    told = {
        "id": task.id,
        "messages": task.messages,
        "data_source": task.data_source,
        "info": dict(task.info),
    }
    try:
        return to_json(told, ensure_ascii=True)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"task {task.id!r} cannot be told to the agent program as JSON: {error}; keep what is "
            "JSON in its messages and info, and of an image the name of its file"
        ) from error


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signals the program's process group; an exited one may refuse it (macOS)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
