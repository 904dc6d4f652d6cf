"""Python tool: runs the model's code in the episode's sandbox and gives its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import ToolError
from agentrl.sandbox import ExecResult, Persist, Sandbox
from agentrl.tools.base import Tool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import text_spec
from agentrl.types import ToolErrorKind

_ERROR_KINDS: Mapping[str, ToolErrorKind] = {"timeout": "timeout", "output_limit": "output_limit"}
_LOST = "Note: variables of earlier calls are lost; the interpreter was started afresh."
_NO_OUTPUT = "(no output; print what you want to see)"


class PythonTool(Tool):
    """Runs Python code in ``context.sandbox`` and gives what it printed; files last until the
    episode ends.

    With ``persist="interpreter"`` (here, or in the sandbox's settings) variables last too; the
    model is told when they were lost.

    What the code did wrong (an exception, a timeout, memory, too much output) is told in words
    behind its output. A failure of the sandbox itself raises SandboxError.

    Args:
        name: the tool's name.
        description: what the model is told.
        persist: what lasts from call to call, ``files`` or also an ``interpreter``'s variables;
            None leaves it to the sandbox.
        timeout_s: seconds one run may take from the start of its execution; the wait for its turn
            (the metric ``queued_s``) does not count.
        stderr_lines: how many of the last lines of stderr are shown when the code fails.
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
        name: str = "python",
        description: str = "Run Python code and get what it prints.",
        persist: Persist | None = None,
        timeout_s: float = 10.0,
        stderr_lines: int = 3,
        max_output_chars: int | None = None,
    ) -> None:
        if not timeout_s > 0 or stderr_lines < 1:
            raise ToolError(
                f"tool {name!r}: needs timeout_s > 0 and stderr_lines >= 1, got {timeout_s=} "
                f"{stderr_lines=}"
            )
        if persist not in (None, "files", "interpreter"):
            raise ToolError(
                f"tool {name!r}: persist must be 'files' or 'interpreter', got {persist!r}"
            )
        self.spec = text_spec(name, description, "code", description="Python source code.")
        self.deadline_s = timeout_s
        self.max_output_chars = max_output_chars
        self._persist = persist
        self._stderr_lines = stderr_lines

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run ``arguments["code"]``."""
        result = await sandbox_of(context, self.spec.name).run(
            arguments["code"], timeout_s=context.deadline_s, persist=self._persist
        )
        text = result.stdout.decode("utf-8", "replace").rstrip("\n")
        fault = self._fault(result, context.deadline_s)
        return run_output(result, text, fault, _LOST if result.interpreter_ended else "")

    def _fault(self, result: ExecResult, timeout_s: float) -> str:
        ended = ended_text(result, timeout_s, "code")
        if result.status == "ok" or ended:
            return ended
        lines = (
            result.stderr.decode("utf-8", "replace").rstrip().splitlines()[-self._stderr_lines :]
        )
        return "\n".join(lines) or f"Error: the code ended with exit code {result.exit_code}."


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
        metrics={"cpu_s": result.cpu_s, "wall_s": result.wall_s, "queued_s": result.queued_s},
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
