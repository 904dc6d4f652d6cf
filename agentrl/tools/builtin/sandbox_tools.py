"""Sandbox tools: Python, a shell and text files in the episode's sandbox."""

from __future__ import annotations

import asyncio
import codecs
import weakref
from collections.abc import Mapping
from typing import Any, Unpack

from agentrl.errors import ToolError
from agentrl.sandbox import ExecResult, FileRefusedError, Persist, Sandbox
from agentrl.tools.base import BuiltInSettings, BuiltInTool, InvalidArgumentsError
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import closed_schema, text_spec
from agentrl.types import ToolErrorKind, ToolSpec

_ERROR_KINDS: Mapping[str, ToolErrorKind] = {
    "timeout": "timeout",
    "output_limit": "output_limit",
}
_LOST = "Note: variables of earlier calls are lost; the interpreter was started afresh."
_NO_OUTPUT = "(no output; print what you want to see)"


class PythonTool(BuiltInTool):
    """Runs Python code in ``context.sandbox`` and gives what it printed; files last until the
    episode ends.

    With ``persist="interpreter"`` (here, or in the sandbox's settings) variables last too; the
    model is told when they were lost.

    What the code did wrong (an exception, a timeout, memory, too much output) is told in words
    behind its output. A failure of the sandbox itself raises SandboxError.

    Args:
        persist: what lasts from call to call, ``files`` or also an ``interpreter``'s variables;
            None leaves it to the sandbox.
        stderr_lines: how many of the last lines of stderr are shown when the code fails.
        settings: see ``BuiltInSettings``. The deadline counts from the start of the execution; the
            wait for its turn (the metric ``queued_s``) does not count.

    Raises:
        ToolError: a limit is out of its range.
    """

    needs_sandbox = True
    keeps_deadline = True
    takes_hosts = True
    deadline_s = 10.0
    spec = text_spec(
        "python",
        "Run Python code and get what it prints.",
        "code",
        description="Python source code.",
    )

    def __init__(
        self,
        *,
        persist: Persist | None = None,
        stderr_lines: int = 3,
        **settings: Unpack[BuiltInSettings],
    ) -> None:
        super().__init__(**settings)
        name = self.spec.name
        if stderr_lines < 1:
            raise ToolError(
                f"tool {name!r}: stderr_lines must be at least 1, got {stderr_lines}"
            )
        if persist not in (None, "files", "interpreter"):
            raise ToolError(
                f"tool {name!r}: persist must be 'files' or 'interpreter', got {persist!r}"
            )
        self._persist = persist
        self._stderr_lines = stderr_lines

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run ``arguments["code"]``."""
        result = await sandbox_of(context, self.spec.name).run(
            arguments["code"], timeout_s=context.deadline_s, persist=self._persist
        )
        fault = self._fault(result, context.deadline_s)
        return run_output(
            result,
            _decoded(result.stdout),
            fault,
            _LOST if result.interpreter_ended else "",
        )

    def _fault(self, result: ExecResult, timeout_s: float) -> str:
        ended = ended_text(result, timeout_s, "code")
        if result.status == "ok" or ended:
            return ended
        lines = _decoded(result.stderr).rstrip().splitlines()
        return (
            "\n".join(lines[-self._stderr_lines :])
            or f"Error: the code ended with exit code {result.exit_code}."
        )


def sandbox_of(context: ToolContext, name: str) -> Sandbox:
    """The episode's sandbox.

    Raises:
        ToolError: the environment has none.
    """
    if context.sandbox is None:
        raise ToolError(
            f"tool {name!r} needs a sandbox; give the environment one: ToolEnv(sandbox=...)"
        )
    return context.sandbox


def run_output(result: ExecResult, *parts: str) -> ToolOutput:
    """What a run said and came to, from its parts in words."""
    kind = _ERROR_KINDS.get(result.status, "exception")
    return ToolOutput(
        "\n".join(filter(None, parts)) or _NO_OUTPUT,
        error=None if result.status == "ok" else kind,
        truncated=result.truncated,
        metrics={
            "cpu_s": result.cpu_s,
            "wall_s": result.wall_s,
            "queued_s": result.queued_s,
        },
    )


def ended_text(result: ExecResult, timeout_s: float, what: str) -> str:
    """How a run was ended by force, in words; empty where it was not."""
    did = {
        "timeout": f"took longer than {timeout_s:g} s and was ended",
        "oom": "used more memory than it may and was ended",
        "output_limit": "printed more than it may and was ended",
        "killed": f"was ended: {result.detail or 'killed'}",
    }.get(result.status)
    return f"Error: the {what} {did}." if did else ""


class ShellTool(BuiltInTool):
    """Runs a command with ``sh`` in ``context.sandbox``; files last until the episode ends,
    variables and the working folder for one command.

    What the command did wrong (an exit code, a timeout, memory, too much output) is told in words
    behind its output. A failure of the sandbox itself raises SandboxError.

    Args:
        settings: see ``BuiltInSettings``. The deadline counts from the start of the execution.

    Raises:
        ToolError: a limit is out of its range.
    """

    needs_sandbox = True
    keeps_deadline = True
    takes_hosts = True
    deadline_s = 10.0
    spec = text_spec(
        "shell",
        "Run a command in a POSIX shell and get what it prints.",
        "command",
        description="What the shell reads.",
    )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run ``arguments["command"]``."""
        command = arguments["command"]
        if "\0" in command:
            return ToolOutput("Error: a command holds no NUL character.", error="exception")
        result = await sandbox_of(context, self.spec.name).run(
            argv=["/bin/sh", "-c", command], timeout_s=context.deadline_s
        )
        parts = [
            _decoded(result.stdout),
            _decoded(result.stderr),
            _end(result, context.deadline_s),
        ]
        return run_output(result, *parts)


def _decoded(output: bytes) -> str:
    return output.decode("utf-8", "replace").rstrip("\n")


def _end(result: ExecResult, timeout_s: float) -> str:
    if result.status == "error":
        return f"Exit code {result.exit_code}."
    return ended_text(result, timeout_s, "command")


_NEEDS = {"view": ["path"], "create": ["path", "text"], "replace": ["path", "old", "new"]}
_MAX_LISTED = 1000
# Of what one call moves out of the sandbox; a model reads far less.
_MAX_VIEWED_BYTES = 2**17
_MAX_CHANGED_BYTES = 2**21


_LINE = {"type": "integer", "minimum": 1}
_FILES_ARGUMENTS: Mapping[str, Any] = {
    "command": {"type": "string", "enum": ["view", "create", "replace", "list"]},
    "path": {"type": "string", "description": "Relative to the working folder."},
    "text": {"type": "string", "description": "create: the whole file."},
    "old": {"type": "string", "description": "replace: text that stands there once."},
    "new": {"type": "string", "description": "replace: what comes in its place."},
    "first_line": {**_LINE, "description": "view: the first line shown."},
    "last_line": {**_LINE, "description": "view: the last line shown."},
}


class FilesTool(BuiltInTool):
    """One tool with four commands over the files of ``context.sandbox``.

    ``view`` numbers the lines; ``create`` writes a file that is not there yet; ``replace`` puts
    ``new`` in the place of ``old``, which must stand in the file exactly once; ``list`` names the
    files.

    Args:
        settings: see ``BuiltInSettings``.
    """

    needs_sandbox = True
    spec = ToolSpec(
        "files",
        "View, create, change and list text files.",
        closed_schema(_FILES_ARGUMENTS, ["command"]),
    )

    def __init__(self, **settings: Unpack[BuiltInSettings]) -> None:
        super().__init__(**settings)
        # Calls of one turn run at once: each change reads and writes under its sandbox's lock.
        self._locks: weakref.WeakKeyDictionary[Sandbox, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Do ``arguments["command"]``."""
        sandbox = sandbox_of(context, self.spec.name)
        command = arguments["command"]
        missing = [name for name in _NEEDS.get(command, ()) if name not in arguments]
        if missing:
            raise InvalidArgumentsError(f"{command} needs {' and '.join(missing)}")
        async with self._locks.setdefault(sandbox, asyncio.Lock()):
            try:
                return ToolOutput(await self._done(command, arguments, sandbox))
            except FileRefusedError as error:
                return ToolOutput(f"Error: {error}", error="exception")

    async def _done(
        self, command: str, arguments: Mapping[str, Any], sandbox: Sandbox
    ) -> str:
        if command == "list":
            return _listed(await sandbox.list_files())
        path = arguments["path"]
        if command == "create":
            # A list of files would be cut, and has one spelling of each path.
            try:
                await sandbox.read_lines(path, max_bytes=0)
            except FileRefusedError:
                await sandbox.write_file(path, arguments["text"].encode(errors="replace"))
                return f"Created {path}."
            raise FileRefusedError(f"{path} is there already; change it with replace")
        if command == "view":
            first = arguments.get("first_line", 1)
            last = arguments.get("last_line")
            found = await sandbox.read_lines(path, first, last, max_bytes=_MAX_VIEWED_BYTES)
            return _numbered(path, first, *found)
        data, _, cut = await sandbox.read_lines(path, max_bytes=_MAX_CHANGED_BYTES)
        if cut:
            raise FileRefusedError(
                f"{path} is larger than {_MAX_CHANGED_BYTES} bytes; change it by a program"
            )
        text = _text(path, data, cut)
        old = arguments["old"]
        # Python finds an empty text between all characters.
        count = text.count(old) if old else 0
        if count != 1:
            raise FileRefusedError(
                f"old must stand in {path} exactly once, and does {count} times; give more of the "
                "lines around it"
            )
        changed = text.replace(old, arguments["new"])
        await sandbox.write_file(path, changed.encode(errors="replace"))
        return f"Changed {path}, from line {text[: text.index(old)].count(chr(10)) + 1} on."


def _listed(sizes: Mapping[str, int]) -> str:
    lines = [f"{path} ({size} bytes)" for path, size in sorted(sizes.items())[:_MAX_LISTED]]
    if len(sizes) > _MAX_LISTED:
        lines.append(f"[... {len(sizes) - _MAX_LISTED} more files ...]")
    return "\n".join(lines) or "(no files)"


def _text(path: str, data: bytes, cut: bool) -> str:
    try:
        # Of a cut text the last character may be half there.
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut)
    except UnicodeDecodeError:
        raise FileRefusedError(f"{path} is no text in UTF-8") from None


def _numbered(path: str, first: int, data: bytes, num_lines: int, cut: bool) -> str:
    if not data:
        return f"(no such lines; the file has {num_lines})"
    lines = _text(path, data, cut).removesuffix("\n").split("\n")
    shown = [f"{number:>6}  {line}" for number, line in enumerate(lines, first)]
    if cut:
        shown.append(f"[... cut; the file has {num_lines} lines ...]")
    return "\n".join(shown)
