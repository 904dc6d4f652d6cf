"""Shell tool: runs the model's commands in the episode's sandbox and gives what they print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import ToolError
from agentrl.sandbox import ExecResult
from agentrl.tools.base import Tool
from agentrl.tools.builtin.python import ended_text, run_output, sandbox_of
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import text_spec


class ShellTool(Tool):
    """Runs a command with ``sh`` in ``context.sandbox``; files last until the episode ends,
    variables and the working folder for one command.

    What the command did wrong (an exit code, a timeout, memory, too much output) is told in words
    behind its output. A failure of the sandbox itself raises SandboxError.

    Args:
        name: the tool's name.
        description: what the model is told.
        timeout_s: seconds one command may take from the start of its execution.
        max_output_chars: characters of output kept; None takes the executor's.

    Raises:
        ToolError: a limit is out of its range.
    """

    needs_sandbox = True
    keeps_deadline = True
    takes_hosts = True

    def __init__(
        self,
        *,
        name: str = "shell",
        description: str = "Run a command in a POSIX shell and get what it prints.",
        timeout_s: float = 10.0,
        max_output_chars: int | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise ToolError(f"tool {name!r}: timeout_s must be above 0, got {timeout_s!r}")
        self.spec = text_spec(name, description, "command", description="What the shell reads.")
        self.deadline_s = timeout_s
        self.max_output_chars = max_output_chars

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run ``arguments["command"]``."""
        command = arguments["command"]
        if "\0" in command:
            return ToolOutput("Error: a command holds no NUL character.", error="exception")
        result = await sandbox_of(context, self.spec.name).run(
            argv=["/bin/sh", "-c", command], timeout_s=context.deadline_s
        )
        parts = [_text(result.stdout), _text(result.stderr), _end(result, context.deadline_s)]
        return run_output(result, *parts)


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace").rstrip("\n")


def _end(result: ExecResult, timeout_s: float) -> str:
    if result.status == "error":
        return f"Exit code {result.exit_code}."
    return ended_text(result, timeout_s, "command")
