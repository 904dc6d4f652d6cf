"""Files tool: views, creates, changes and lists text files of the episode's sandbox."""

from __future__ import annotations

import asyncio
import codecs
import weakref
from collections.abc import Mapping
from typing import Any

from agentrl.sandbox import FileRefusedError, Sandbox
from agentrl.tools.base import InvalidArgumentsError, Tool
from agentrl.tools.builtin.python import sandbox_of
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import closed_schema
from agentrl.types import ToolSpec

_NEEDS = {"view": ["path"], "create": ["path", "text"], "replace": ["path", "old", "new"]}
_MAX_LISTED = 1000
# Of what one call moves out of the sandbox; a model reads far less.
_MAX_VIEWED_BYTES = 2**17
_MAX_CHANGED_BYTES = 2**21


class FilesTool(Tool):
    """One tool with four commands over the files of ``context.sandbox``.

    ``view`` numbers the lines; ``create`` writes a file that is not there yet; ``replace`` puts
    ``new`` in the place of ``old``, which must stand in the file exactly once; ``list`` names the
    files.

    Args:
        name: the tool's name.
        description: what the model is told.
        max_output_chars: characters of output kept; None takes the executor's.
    """

    needs_sandbox = True

    def __init__(
        self,
        *,
        name: str = "files",
        description: str = "View, create, change and list text files.",
        max_output_chars: int | None = None,
    ) -> None:
        commands = ["view", "create", "replace", "list"]
        line = {"type": "integer", "minimum": 1}
        properties = {
            "command": {"type": "string", "enum": commands},
            "path": {"type": "string", "description": "Relative to the working folder."},
            "text": {"type": "string", "description": "create: the whole file."},
            "old": {"type": "string", "description": "replace: text that stands there once."},
            "new": {"type": "string", "description": "replace: what comes in its place."},
            "first_line": {**line, "description": "view: the first line shown."},
            "last_line": {**line, "description": "view: the last line shown."},
        }
        self.spec = ToolSpec(name, description, closed_schema(properties, ["command"]))
        self.max_output_chars = max_output_chars
        # Calls of one turn run at once: each change reads and writes under its sandbox's lock.
        self._locks: weakref.WeakKeyDictionary[Sandbox, asyncio.Lock] = weakref.WeakKeyDictionary()

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
            except _RefusedError as error:
                return ToolOutput(f"Error: {error}", error="exception")

    async def _done(self, command: str, arguments: Mapping[str, Any], sandbox: Sandbox) -> str:
        if command == "list":
            return _listed(await sandbox.list_files())
        path = arguments["path"]
        if command == "create":
            if path in await sandbox.list_files():
                raise _RefusedError(f"{path} is there already; change it with replace")
            await sandbox.write_file(path, arguments["text"].encode(errors="replace"))
            return f"Created {path}."
        if command == "view":
            first = arguments.get("first_line", 1)
            last = arguments.get("last_line")
            found = await sandbox.read_lines(path, first, last, max_bytes=_MAX_VIEWED_BYTES)
            return _numbered(path, first, *found)
        data, _, cut = await sandbox.read_lines(path, max_bytes=_MAX_CHANGED_BYTES)
        if cut:
            raise _RefusedError(
                f"{path} is larger than {_MAX_CHANGED_BYTES} bytes; change it by a program"
            )
        text = _text(path, data, cut)
        old = arguments["old"]
        count = text.count(old) if old else 0
        if count != 1:
            raise _RefusedError(
                f"old must stand in {path} exactly once, and does {count} times; give more of the "
                "lines around it"
            )
        changed = text.replace(old, arguments["new"])
        await sandbox.write_file(path, changed.encode(errors="replace"))
        return f"Changed {path}, from line {text[: text.index(old)].count(chr(10)) + 1} on."


class _RefusedError(Exception):
    """What a file does not allow, in words for the model."""


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
        raise _RefusedError(f"{path} is no text in UTF-8") from None


def _numbered(path: str, first: int, data: bytes, num_lines: int, cut: bool) -> str:
    if not data:
        return f"(no such lines; the file has {num_lines})"
    lines = _text(path, data, cut).removesuffix("\n").split("\n")
    shown = [f"{number:>6}  {line}" for number, line in enumerate(lines, first)]
    if cut:
        shown.append(f"[... cut; the file has {num_lines} lines ...]")
    return "\n".join(shown)
