"""Tool executor: runs the calls of one turn and records each call and each problem in order."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from agentrl.errors import AgentRLError, DataError, ToolError, nearest
from agentrl.sandbox import Sandbox
from agentrl.tools.base import InvalidArgumentsError, Tool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.threads import DeadlineError
from agentrl.tools.validate import found_faults, schema_validator
from agentrl.types import (
    CallProblem,
    CallRecord,
    Image,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    seed_for,
)
from agentrl.types.clock import epoch_at

_NUMBERED = re.compile(r"call_(\d+)")
_CANCEL_GRACE_S = 5.0
_LONGEST_NAME = 64


class ToolExecutor:
    """The tools of one environment, and how they are called.

    Args:
        tools: with different names.
        deadline_s: seconds a call may take, for tools that set none.
        max_output_chars: characters of output kept, for tools that set none.

    Attributes:
        specs: what the model is told, in the order given.
        num_abandoned: calls that went on after their deadline: a thread that cannot be stopped, a
            coroutine that will not end.

    Raises:
        ToolError: two tools of one name, or a limit that is not above 0.
    """

    def __init__(
        self, tools: Sequence[Tool], *, deadline_s: float = 30.0, max_output_chars: int = 8_000
    ) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            names = [tool.spec.name for tool in tools]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ToolError(
                f"tools need different names, got {twice} more than once; rename one with name="
            )
        if not deadline_s > 0 or not max_output_chars > 0:
            raise ToolError(f"limits must be above 0, got {deadline_s=} and {max_output_chars=}")
        self._validators = {
            name: schema_validator(tool.spec.parameters, name) for name, tool in self._tools.items()
        }
        self._deadline_s = deadline_s
        self._max_output_chars = max_output_chars
        self.specs = tuple(tool.spec for tool in tools)
        self.num_abandoned = 0
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        calls: Sequence[ToolCall],
        problems: Sequence[CallProblem] = (),
        *,
        seed: int = 0,
        episode_id: str = "",
        sandbox: Sandbox | None = None,
    ) -> tuple[CallRecord, ...]:
        """Run all calls of a turn at once and answer every problem.

        What goes wrong in a call is a result whose text says what to correct. A failure of ours is
        raised, the other calls being cancelled: any AgentRLError from a tool's body, such as
        SandboxError.

        Args:
            calls: well-formed calls.
            problems: calls that could not be read.
            seed: of this turn; each call gets one of its own from it.
            episode_id: told to the tools.
            sandbox: told to the tools.

        Returns:
            A record for each call and problem, by the number in its id (``call_0``, ``call_1``,
            ...); ids of another form keep their order, behind those.
        """
        works = [self._record(call, seed, episode_id, sandbox) for call in calls]
        # one has nothing to run beside
        done = [await works[0]] if len(works) == 1 else await _all(works)
        return tuple(sorted([*done, *map(_answer_problem, problems)], key=_position))

    async def _record(
        self, call: ToolCall, seed: int, episode_id: str, sandbox: Sandbox | None
    ) -> CallRecord:
        started = time.monotonic()
        tool = self._tools.get(call.name)
        if tool is None:
            near = nearest(call.name[:_LONGEST_NAME], self._tools)
            meant = f" Did you mean {near!r}?" if near else ""
            known = ", ".join(self._tools) or "none"
            name = _clip_text(call.name, _LONGEST_NAME)[0]
            output = _error(
                "unknown_tool", f"there is no tool {name!r}.{meant} The tools are: {known}."
            )
            limit = self._max_output_chars
        else:
            deadline_s = tool.deadline_s or self._deadline_s
            own_seed = seed_for(seed, "call", call.id)
            output = await self._output(
                tool, call, ToolContext(own_seed, episode_id, call.id, deadline_s, sandbox)
            )
            limit = tool.max_output_chars or self._max_output_chars
        content, cut = _clip_text(_valid_text(output.content), limit)
        result = ToolResult(
            call_id=call.id,
            name=call.name,
            content=content,
            error=output.error,
            latency_s=time.monotonic() - started,
            truncated=cut or output.truncated,
            metrics=output.metrics,
            images=tuple(image for image in output.images if isinstance(image, Image)),
            started_at=epoch_at(started),
        )
        return CallRecord(call=call, problem=None, result=result)

    async def _output(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolOutput:
        try:
            if faults := await found_faults(self._validators[call.name], call.arguments):
                raise InvalidArgumentsError("; ".join(faults))
            work = _contained(tool, call, context)
            output = await (work if tool.keeps_deadline else self._within(context.deadline_s, work))
        except AgentRLError:
            raise
        except InvalidArgumentsError as error:
            return _error(
                "invalid_arguments", f"{error}. Mend the arguments of {call.name} and call again."
            )
        except DeadlineError:
            # only a thread keeps its deadline by leaving the call behind
            self.num_abandoned += tool.keeps_deadline
            return _error(
                "timeout", f"{call.name} took longer than {context.deadline_s:g} s and was ended."
            )
        except Exception as error:  # noqa: BLE001 - the boundary: what a tool raises goes to the model as text
            return _error("exception", f"{call.name} raised {type(error).__name__}: {error}")
        output = output if isinstance(output, ToolOutput) else ToolOutput(output)
        if not isinstance(output.content, (str, bytes)):
            raise ToolError(
                f"tool {call.name!r}: call must give a str or a ToolOutput of one, got "
                f"{output.content!r}"
            )
        if not output.images:
            return output
        return await asyncio.to_thread(_with_images_read, output, call.name)

    async def _within(
        self, deadline_s: float, work: Coroutine[Any, Any, str | ToolOutput]
    ) -> str | ToolOutput:
        """What ``work`` gives, unless the deadline passes first: then it is cancelled, and left
        behind if that fails.

        Raises:
            DeadlineError: the deadline passed.
            AgentRLError: it passed, and ``work`` failed for a reason of ours while it was ended.
        """
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline_s)
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        if done:
            return task.result()
        ended = await self._stop(task) and not task.cancelled()
        if ended and isinstance(failure := task.exception(), AgentRLError):
            raise failure
        raise DeadlineError

    async def _stop(self, task: asyncio.Task[Any]) -> bool:
        """Cancel; whether it ended within the grace. One that did not is counted and kept from the
        collector.
        """
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_CANCEL_GRACE_S)
        if not done:
            self.num_abandoned += 1
            self._abandoned.add(task)
            task.add_done_callback(self._forget)
        return bool(done)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            # looked at, so that asyncio does not report it as lost: it was counted long ago
            task.exception()


async def _all(works: Sequence[Coroutine[Any, Any, CallRecord]]) -> list[CallRecord]:
    """What they give, in order; where one fails or the caller is cancelled, the others are ended
    first.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _contained(tool: Tool, call: ToolCall, context: ToolContext) -> str | ToolOutput:
    """The tool's output, but an ``exit()`` in its body ends the call and not the process."""
    try:
        return await tool.call(call.arguments, context)
    except SystemExit as error:
        raise RuntimeError(f"it called exit({error.code!r})") from None


def _with_images_read(output: ToolOutput, name: str) -> ToolOutput:
    """The output with each image an ``Image``; a fault of the tool where one cannot be read."""
    try:
        images = tuple(
            Image.read(image, f"image {number}") for number, image in enumerate(output.images)
        )
    except DataError as error:
        return _error("exception", f"{name} gave an image that cannot be used: {error}")
    return replace(output, images=images)


def _error(kind: ToolErrorKind, text: str) -> ToolOutput:
    return ToolOutput(f"Error: {text}", error=kind)


def _answer_problem(problem: CallProblem) -> CallRecord:
    result = ToolResult(
        call_id=problem.id, name="", content=f"Error: {problem.detail}", error="malformed"
    )
    return CallRecord(call=None, problem=problem, result=result)


def _position(record: CallRecord) -> float:
    written = record.call or record.problem
    numbered = _NUMBERED.fullmatch(written.id) if written else None
    return int(numbered.group(1)) if numbered else float("inf")


def _valid_text(content: str | bytes) -> str:
    """``content`` as text that UTF-8 can carry; what is no character becomes U+FFFD."""
    if isinstance(content, bytes):
        return content.decode("utf-8", "replace")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates, as os.fsdecode makes them
        return content.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return content


def _clip_text(text: str, max_chars: int) -> tuple[str, bool]:
    """At most ``max_chars`` characters of ``text``: its head and its tail, with a marker between
    that comes on top.

    Returns:
        The text, and whether anything was left out.
    """
    left_out = len(text) - max_chars
    if left_out <= 0:
        return text, False
    tail = max_chars // 2
    head = max_chars - tail
    marker = f"\n[... {left_out} of {len(text)} characters left out ...]\n"
    return text[:head] + marker + (text[-tail:] if tail else ""), True
