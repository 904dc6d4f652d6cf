"""Tool executor: runs the calls of one turn and records each call and each problem in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from agentrl.errors import AgentRLError, ToolError, nearest
from agentrl.guards.schema import CheckedSchema
from agentrl.sandbox import Sandbox
from agentrl.tools.base import InvalidArgumentsError, Tool, merged
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.execution.faults import Endpoints, tool_error
from agentrl.tools.execution.gates import ToolGate, gate_of
from agentrl.tools.execution.outputs import (
    MAX_PIECES_CHARS,
    after_pieces,
    checked_output,
    clip_text,
    clip_tokens,
    error_output,
    offer_text,
    valid_text,
    with_images_read,
)
from agentrl.tools.parsers.reading import written_at
from agentrl.tools.signature import argument_faults, schema_validator
from agentrl.types import (
    CallProblem,
    CallRecord,
    Image,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    seed_for,
)
from agentrl.types.clock import PausableClock, backoff_s, counted_by, epoch_at
from agentrl.types.user_code.place import described, said_by
from agentrl.types.user_code.values import private_copy
from agentrl.types.user_code.wall import DeadlineError, by_deadline, wall

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_ENDPOINTS = Endpoints()

_LONGEST_NAME = 64
_ATTEMPTS = 4
"""Of a call whose failure is ours."""
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 1.0

TokenEnds: TypeAlias = Callable[[str], Sequence[int]]


class ToolExecutor:
    """The tools of one environment, and how they are called.

    Args:
        tools: with different names.
        deadline_s: seconds a call may take, for tools that set none.
        max_output_chars: characters of output kept, for tools that set none.
        max_seconds: seconds that the calls of an episode may take together, without waits that
            others cause; those that run at once count each. None sets no limit.
        endpoints: services whose failures are ours.

    Attributes:
        token_ends: for each token of a text, the number of characters up to its end; tools with
            ``max_output_tokens`` need it.
        specs: what the model is told in its prompt, in the order given.
        num_abandoned: calls that did not end by their deadline: a thread that cannot be stopped, a
            coroutine that was given up.

    Raises:
        ToolError: two tools of one name, or a limit that is not above 0.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        deadline_s: float = 30.0,
        max_output_chars: int = 8_000,
        max_seconds: float | None = None,
        endpoints: Endpoints = NO_ENDPOINTS,
    ) -> None:
        self._known: dict[str, Tool] = {}
        self._validators: dict[str, CheckedSchema] = {}
        for tool in tools:
            self._add(tool)
        if len(self._known) < len(tools):
            names = [tool.spec.name for tool in tools]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ToolError(
                f"tools need different names, got {twice} more than once; rename one with name="
            )
        if not deadline_s > 0 or not max_output_chars > 0:
            raise ToolError(
                f"limits must be above 0, got {deadline_s=} and {max_output_chars=}"
            )
        self._offered = dict(self._known)
        self._deadline_s = deadline_s
        self._max_output_chars = max_output_chars
        self.specs = tuple(tool.spec for tool in tools)
        self._max_seconds = max_seconds
        self._endpoints = endpoints
        self.token_ends: TokenEnds | None = None
        self._num_calls: Counter[str] = Counter()
        self._seconds = 0.0
        self.num_abandoned = 0

    async def run(
        self,
        calls: Sequence[ToolCall],
        problems: Sequence[CallProblem] = (),
        *,
        seed: int = 0,
        episode_id: str = "",
        sandbox: Sandbox | None = None,
        task: Task | None = None,
        state: dict[str, Any] | None = None,
    ) -> tuple[CallRecord, ...]:
        """Run all calls of a turn at once and answer every problem.

        What goes wrong in a call is a result whose text says what to correct. A failure of ours is
        raised, the other calls being cancelled: any AgentRLError from a tool's body, such as
        SandboxError. Where an output changes the tools on offer, the change holds from the next
        turn on, and the call's answer tells it.

        Args:
            calls: well-formed calls.
            problems: calls that could not be read.
            seed: of this turn; each call gets one of its own from it.
            episode_id, sandbox, task, state: told to the tools (``ToolContext``).

        Returns:
            A record for each call and problem, by the number in its id (``call_0``, ``call_1``,
            ...); ids of another form keep their order, behind those.
        """
        told = ToolContext(
            seed,
            episode_id,
            sandbox=sandbox,
            task=task,
            state={} if state is None else state,
            offered=self._offered,
            known=self._known,
        )
        works = [self._record(call, told) for call in calls]
        # One has nothing to run beside.
        done = [await works[0]] if len(works) == 1 else await _all(works)
        # By their numbers: what is on offer afterwards must not depend on which call ended first.
        done.sort(key=lambda answer: _position(answer[0]))
        records = [self._with_offer(record, tools) for record, tools in done]
        return tuple(sorted([*records, *map(_answer_problem, problems)], key=_position))

    def may_use_sandbox(self, name: str) -> bool:
        """Whether the tool of this name may use ``context.sandbox``."""
        tool = self._offered.get(name)
        return tool is not None and (
            tool.needs_sandbox or getattr(tool, "takes_context", False)
        )

    @property
    def offered(self) -> tuple[str, ...] | None:
        """The names of the tools on offer, where they are others than those of the prompt."""
        names = tuple(self._offered)
        return None if names == tuple(spec.name for spec in self.specs) else names

    @property
    def told_specs(self) -> tuple[ToolSpec, ...]:
        """Of the tools that answers told the model of, and no prompt."""
        listed = {spec.name for spec in self.specs}
        return tuple(tool.spec for name, tool in self._known.items() if name not in listed)

    def offer(self, tools: Sequence[object]) -> Sequence[Tool]:
        """Puts these tools on offer, and no others.

        Args:
            tools: each a Tool, which takes the place of one of its name, or a known tool's name.

        Returns:
            Those that were not known before.

        Raises:
            ToolError: two of one name, a name that is none, or something else.
        """
        new = [
            tool
            for tool in tools
            if isinstance(tool, Tool) and self._known.get(tool.spec.name) is not tool
        ]
        names = [tool.spec.name if isinstance(tool, Tool) else str(tool) for tool in tools]
        known = {*self._known, *(tool.spec.name for tool in new)}
        for name, tool in zip(names, tools, strict=True):
            if (
                not isinstance(tool, (Tool, str))
                or name not in known
                or names.count(name) > 1
            ):
                raise ToolError(
                    f"ToolOutput.tools must hold different Tools or names of {sorted(known)}, got "
                    f"{tool!r}"
                )
        for tool in new:
            self._add(tool)
        self._offered = {name: self._known[name] for name in names}
        return new

    def _add(self, tool: Tool) -> None:
        name = tool.spec.name
        self._validators[name] = schema_validator(tool.spec.parameters, name)
        self._known[name] = tool

    def _with_offer(self, record: CallRecord, tools: Sequence[object] | None) -> CallRecord:
        if tools is None or record.result is None:
            return record
        text = offer_text(self.offer(tools), self._offered)
        content = "\n\n".join(filter(None, (record.result.content, text)))
        return replace(record, result=replace(record.result, content=content))

    @property
    def usage(self) -> dict[str, Any]:
        """What the episode has used of its limits, for a checkpoint."""
        return {"calls": dict(self._num_calls), "seconds": self._seconds}

    def restore_usage(self, usage: Mapping[str, Any]) -> None:
        """Go on from what ``usage`` gave."""
        self._num_calls = Counter(usage["calls"])
        self._seconds = usage["seconds"]

    async def _record(
        self, call: ToolCall, told: ToolContext
    ) -> tuple[CallRecord, Sequence[object] | None]:
        started = time.monotonic()
        tool = self._offered.get(call.name)
        own: dict[str, float] = {}
        max_chars = self._max_output_chars
        max_tokens: int | None = None
        if tool is None:
            output = self._unknown(call.name)
        else:
            max_chars = tool.max_output_chars or max_chars
            max_tokens = tool.max_output_tokens
            output = self._spent(tool) or await self._gated(tool, call, told, own)
        content, cut = await self._clipped(output.content, call.name, max_chars, max_tokens)
        result = ToolResult(
            call_id=call.id,
            name=call.name,
            content=content,
            error=output.error,
            latency_s=time.monotonic() - started,
            truncated=cut or output.truncated,
            metrics={**(output.metrics or {}), **own} if own else output.metrics,
            images=tuple(image for image in output.images if isinstance(image, Image)),
            started_at=epoch_at(started),
            reward=float(output.reward),
            end=output.end,
        )
        return CallRecord(call=call, problem=None, result=result), output.tools

    def _unknown(self, name: str) -> ToolOutput:
        near = nearest(name[:_LONGEST_NAME], self._offered)
        meant = f" Did you mean {near!r}?" if near else ""
        known = ", ".join(self._offered) or "none"
        short = clip_text(name, _LONGEST_NAME)[0]
        return error_output(
            "unknown_tool", f"there is no tool {short!r}.{meant} The tools are: {known}."
        )

    def _spent(self, tool: Tool) -> ToolOutput | None:
        """The answer to a call that a limit of the episode leaves no room for; otherwise it
        counts.
        """
        name = tool.spec.name
        if tool.max_calls is not None and self._num_calls[name] >= tool.max_calls:
            text = (
                f"{name} may be called {tool.max_calls} times, and was. Go on without it."
            )
            return error_output("call_limit", text)
        if self._max_seconds is not None and self._seconds >= self._max_seconds:
            spent = f"the {self._max_seconds:g} s that tools may take are spent"
            text = f"{spent}. Answer without them."
            return error_output("call_limit", text)
        self._num_calls[name] += 1
        return None

    async def _clipped(
        self, content: str | bytes, name: str, max_chars: int, max_tokens: int | None
    ) -> tuple[str, bool]:
        text, cut = clip_text(valid_text(content), max_chars)
        if max_tokens is None:
            return text, cut
        if self.token_ends is None:
            raise ToolError(
                f"tool {name!r}: max_output_tokens needs the model's tokenizer, and this engine "
                "takes messages; use max_output_chars"
            )
        ends = await asyncio.to_thread(self.token_ends, text)
        text, cut_again = clip_tokens(text, ends, max_tokens)
        return text, cut or cut_again

    async def _gated(
        self, tool: Tool, call: ToolCall, told: ToolContext, own: dict[str, float]
    ) -> ToolOutput:
        """The output of a call once it has a place among those of all episodes.

        Args:
            tool, call: what is called.
            told: what all calls of the turn are told, with its seed.
            own: takes what the executor measured.
        """
        deadline_s = tool.deadline_s or self._deadline_s
        if self._max_seconds is not None:
            deadline_s = min(deadline_s, self._max_seconds - self._seconds)
        own_seed = seed_for(told.seed, "call", call.id)
        context = replace(told, seed=own_seed, call_id=call.id, deadline_s=deadline_s)
        gate = gate_of(call.name)
        async with gate.entered(
            context.episode_id,
            max_concurrent=tool.max_concurrent,
            calls_per_s=tool.calls_per_s,
        ) as queued_s:
            if tool.max_concurrent is not None or tool.calls_per_s is not None:
                own["queued_s"] = queued_s
            # Waits that others cause, such as for a thread or a sandbox, do not count.
            clock = PausableClock()
            began = clock.now()
            try:
                with counted_by(clock):
                    return await self._output(
                        _RunningCall(tool, call, context, gate, own, clock)
                    )
            finally:
                self._seconds += clock.now() - began

    async def _output(self, one: _RunningCall) -> ToolOutput:
        tool, call, context = one.tool, one.call, one.context
        try:
            if faults := argument_faults(self._validators[call.name], call.arguments):
                raise InvalidArgumentsError("; ".join(faults))
            output = await by_deadline(
                self._attempts(one),
                None if tool.keeps_deadline else context.deadline_s,
                lambda: f"tool {call.name!r}",
                self._abandon,
            )
        except AgentRLError:
            raise
        except InvalidArgumentsError as error:
            return error_output(
                "invalid_arguments",
                f"{error}. Correct the arguments of {call.name} and call again.",
            )
        except DeadlineError:
            # Only a thread keeps its deadline by leaving the call behind.
            self.num_abandoned += tool.keeps_deadline
            text = f"{call.name} took longer than {context.deadline_s:g} s and was ended."
            failed = error_output("timeout", text)
        except Exception as error:  # noqa: BLE001
            # The boundary: what a tool raises goes to the model as text.
            text = f"{call.name} raised {said_by(error)}"
            failed = error_output("exception", text)
        else:
            output = checked_output(output, call.name)
            if not output.images:
                return output
            return await asyncio.to_thread(with_images_read, output, call.name)
        return after_pieces(one.pieces, failed)

    async def _attempts(self, one: _RunningCall) -> str | ToolOutput:
        """The tool's output; a failure of ours is tried again while that is allowed.

        Raises:
            ToolError: the failure is ours, and stays.
            Exception: it is the model's.
        """
        tool, context = one.tool, one.context
        ends_at = one.clock.now() + context.deadline_s
        for attempt in range(_ATTEMPTS):
            try:
                output = await _contained(tool, one.call, context, one.pieces)
            except Exception as error:
                fault = self._endpoints.fault(error, one.call.arguments)
                if fault is None or tool.takes_hosts:
                    raise
                pause_s = backoff_s(
                    attempt, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S
                )
                remaining_s = ends_at - one.clock.now() - pause_s
                may_repeat = tool.idempotent or not fault.sent
                if not (may_repeat and attempt < _ATTEMPTS - 1 and remaining_s > 0):
                    if isinstance(error, ToolError):
                        raise
                    alone = one.gate.is_alone()
                    answers = one.gate.num_answers
                    raise tool_error(
                        one.call, fault, alone=alone, answers=answers
                    ) from error
                logger.warning(
                    "tool %s is called again after a failure of ours: %s",
                    tool.spec.name,
                    fault.text,
                    extra={
                        "event": "tool_retried",
                        "tool": tool.spec.name,
                        "error": fault.text,
                    },
                )
            else:
                one.gate.count_answer()
                return output
            one.own["retries"] = one.own.get("retries", 0.0) + 1
            # What the attempt said before it failed is no part of the answer.
            one.pieces.clear()
            # Of the call's own deadline, but not of the seconds that the policy may spend.
            with one.clock.paused():
                await asyncio.sleep(pause_s)
            ends_at -= pause_s
            context = replace(context, deadline_s=max(remaining_s, 1e-3))
        raise AssertionError("the last attempt gives or raises")

    def _abandon(self) -> None:
        self.num_abandoned += 1


@dataclass(slots=True, eq=False)
class _RunningCall:
    """One call on its way.

    Args:
        tool, call, context: what is called, how and for whom.
        gate: of the tool.
        own: what the executor measured, kept with the result's metrics.
        clock: counts its seconds.
        pieces: the output so far, of a tool that gives it piece by piece.
    """

    tool: Tool
    call: ToolCall
    context: ToolContext
    gate: ToolGate
    own: dict[str, float]
    clock: PausableClock
    pieces: list[str | ToolOutput] = field(default_factory=list)


async def _all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What they give, in order; where one fails or the caller is cancelled, the others are ended
    first.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        # ``gather`` leaves the others running where one fails.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _contained(
    tool: Tool, call: ToolCall, context: ToolContext, pieces: list[str | ToolOutput]
) -> str | ToolOutput:
    """The tool's output. An exit in its body is an error like any other, for the model to read; a
    cancellation that nobody asked for is a failure of ours.

    Args:
        tool, call, context: what is called.
        pieces: takes the output of a tool that gives it piece by piece.
    """

    def failed(error: BaseException) -> BaseException:
        if isinstance(error, asyncio.CancelledError):
            return ToolError(
                f"tool {call.name!r} was cancelled by nobody who runs it: {described(error)}; "
                "await nothing that another call may cancel",
                retryable=True,
            )
        if isinstance(error, SystemExit):
            return RuntimeError(f"it called exit({error.code!r})")
        return error if isinstance(error, Exception) else RuntimeError(said_by(error))

    with wall(failed):
        # A tool may change what it is given; another attempt and the record need the model's own.
        own = replace(call, arguments=private_copy(call.arguments))
        if not tool.in_pieces:
            return await tool.call(own.arguments, context)
        return await _in_pieces(tool, own, context, pieces)


async def _in_pieces(
    tool: Tool, call: ToolCall, context: ToolContext, pieces: list[str | ToolOutput]
) -> ToolOutput:
    num_chars = 0
    # A generator that is left early ends here, and not when its memory is collected.
    async with aclosing(tool.stream(call.arguments, context)) as stream:
        async for piece in stream:
            piece = checked_output(piece, call.name)
            pieces.append(piece)
            num_chars += len(piece.content)
            if num_chars > MAX_PIECES_CHARS:
                text = f"{call.name} gave more than {MAX_PIECES_CHARS} characters and was ended."
                return after_pieces(pieces, error_output("output_limit", text))
            # A generator that awaits nothing lets others run all the same.
            await asyncio.sleep(0)
    return merged(pieces)


def _answer_problem(problem: CallProblem) -> CallRecord:
    result = ToolResult(
        call_id=problem.id, name="", content=f"Error: {problem.detail}", error="malformed"
    )
    return CallRecord(call=None, problem=problem, result=result)


def _position(record: CallRecord) -> float:
    written = record.call or record.problem
    assert written is not None, "a record has one of both"
    return written_at(written.id)
