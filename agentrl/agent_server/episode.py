"""Served episode: answers an agent's requests with turns of the policy, until the episode ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrl.agent_server.api.api_error import PolicyApiError, bad_request
from agentrl.agent_server.api.constraints import (
    AnswerConstraints,
    schema_fault,
    with_instruction,
)
from agentrl.agent_server.api.request import ChatRequest
from agentrl.agent_server.history import Continuation, HistoryEntry, HistoryIndex, note_turn
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.errors import AgentRLError, DataError, RewardError, ServerError
from agentrl.llm import CONTEXT_EXCEEDED
from agentrl.rollouts.builder import TurnRequest
from agentrl.rollouts.deadlines import Deadline, LimitSpentError
from agentrl.rollouts.turns import TurnGenerator, TurnResult
from agentrl.tools.parsers import PlainParser
from agentrl.types import (
    Message,
    SamplingParams,
    Status,
    ToolCall,
    ToolResult,
    content_text,
)
from agentrl.types.user_code.values import finite_number


class ServedEpisode:
    """Generates turns for an agent's requests, and keeps the rewards that the agent reports.

    - A request whose messages extend an answered turn extends that turn's sequence; any other
      begins a new sequence.
    - Requests may be concurrent, and may alternate between sequences.
    - All methods run in the endpoint's event loop.

    Args:
        turns: the episode's turn generator.
        idle_timeout_s: seconds without a request after which the episode ends; None for no bound.
        obey_sampling: sample as each request asks. Otherwise the episode's sampling holds for every
            request, because tokens of several distributions cannot be trained together.
        strict_keys: refuse keys and types of tools that are unknown, rather than note them.
        loose_history: see ``HistoryIndex``.

    Attributes:
        context_status: the status of a conversation that had no room for its last request.
        threads: the conversations of the Responses API up to each response, by its id, as the
            client has them, without instructions.
    """

    def __init__(
        self,
        turns: TurnGenerator,
        *,
        idle_timeout_s: float | None = None,
        obey_sampling: bool = False,
        strict_keys: bool = False,
        loose_history: bool = False,
    ) -> None:
        self._turns = turns
        self._idle_timeout_s = idle_timeout_s
        self._obey_sampling = obey_sampling
        self._history = HistoryIndex(loose=loose_history)
        self._rewards: dict[str, float] = {}
        self._reasons: dict[str, Any] = {}
        self._generating: set[asyncio.Task[TurnResult]] = set()
        self._has_first_sequence = False
        self._last_active = time.monotonic()
        # Resolved once, with the episode's status or with the error that failed it.
        self._end: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.context_status: Status | None = None
        self.strict_keys = strict_keys
        self.threads: dict[str, tuple[Message, ...]] = {}

    @property
    def num_turns(self) -> int:
        """The number of recorded turns."""
        return len(self._turns.builder.turns)

    async def complete(self, stream: StreamWriter) -> TurnResult:
        """Generates the policy's turn, as the client gets it.

        Args:
            stream: the request, and the receiver of the turn's tokens. If its client leaves, the
                turn is cancelled and not recorded.

        Raises:
            PolicyApiError: the turn failed, and may have ended the episode.
        """
        request = stream.request
        self._check_open()
        if request.logprobs and self._turns.context.renderer is None:
            raise bad_request("logprobs must be false here: the engine gives no token ids")
        found = self._history.find(request.messages, request.tools)
        entry, new = found.entry, found.new
        before = () if entry is None else entry.client_messages
        if entry is not None:
            new = _with_hidden_results(entry.hidden_calls, new)
        turn_request = self._turn_request(found, new, request)
        most = self._turns.context.spec.episode.max_turns
        # Turns that are still being made count too, since requests may be concurrent.
        if self.num_turns + len(self._generating) >= most:
            self._end_with(Status("truncated", "max_turns"))
            raise PolicyApiError(410, "max_turns", f"the episode has had its {most} turns")
        # Before anything is awaited: a request beside this one needs a session of its own.
        self._has_first_sequence = True
        if entry is not None:
            entry.extended = True
            entry.note_results(self._turns.builder, new)
        try:
            turn = await self._run(turn_request, stream)
        finally:
            self._last_active = time.monotonic()
        self.context_status = None
        text = self._turns.opened_reasoning(turn_request) + turn.action.text
        as_text = PlainParser().parse(text).message
        message, hidden = request.constraints.visible(turn.action, as_text)
        self._history.add(
            HistoryEntry(
                turn.sequence,
                (*before, *found.new, message),
                request.tools,
                request.constraints,
                hidden,
            ),
            found,
        )
        notes = {**await self._notes(request, turn), "repairs": dict(found.repairs)}
        note_turn(self._turns.builder, turn, request.tools, notes)
        self._turns.builder.repairs.update(found.repairs.keys())
        calls = tuple(call for call in turn.action.tool_calls if call not in hidden)
        return replace(turn, action=replace(turn.action, message=message, tool_calls=calls))

    def count_tokens(self, request: ChatRequest) -> int:
        """The tokens of a request's conversation as a prompt of its own, and of its tools.

        Raises:
            PolicyApiError: the engine takes no ids, or the template cannot write the conversation.
        """
        renderer = self._turns.context.renderer
        if renderer is None:
            raise bad_request(
                "tokens cannot be counted here: the engine takes no token ids"
            )
        most = self._turns.context.spec.context_tokens
        if (fewest := renderer.fewest_tokens(request.messages)) > most:
            reason = f"at least {fewest} tokens, rollout.context_tokens is {most}; {_size(request)}"
            raise PolicyApiError(
                400, CONTEXT_EXCEEDED, f"the conversation has {reason}; shorten it"
            )
        try:
            return sum(map(len, renderer.prompt(request.messages, request.tools)))
        except DataError as error:
            raise bad_request(str(error)) from error

    def give_reward(self, value: float, name: str = "reward", why: Any = None) -> None:
        """Sets a part of the episode's reward; a second call with a name replaces the first.

        Args:
            value: of the part.
            name: of the part.
            why: what led to it, for people to read, as JSON (``Trajectory.reasons``).

        Raises:
            PolicyApiError: the episode has ended, or the value is no finite number.
        """
        self._check_open()
        if isinstance(value, bool) or finite_number(value) is None:
            raise bad_request(f"reward must be a finite number, got {value!r}")
        self._last_active = time.monotonic()
        self._rewards[name] = float(value)
        # The reason of the reward that this one replaces is not its own.
        self._reasons.pop(name, None)
        if why is not None:
            self._reasons[name] = why

    def finish(self, truncated: str = "") -> None:
        """Ends the episode by its agent.

        Args:
            truncated: the reason of a truncation; empty for a terminated episode.

        Raises:
            PolicyApiError: the episode has ended already.
        """
        self._check_open()
        self._end_with(
            Status("truncated", truncated) if truncated else Status("terminated")
        )

    async def until_end(self) -> Status:
        """Waits until the agent, a limit or the idle timeout ends the episode.

        Raises:
            AgentRLError: the engine failed the episode.
        """
        while not self._end.done():
            left_s = self._idle_timeout_s
            if left_s is not None and not self._generating:
                left_s -= time.monotonic() - self._last_active
            if left_s is not None and left_s <= 0:
                self._end_with(
                    Status("truncated" if self.num_turns else "cancelled", "idle_timeout")
                )
            else:
                await asyncio.wait([self._end], timeout=left_s)
        return self._end.result()

    def how_ended(self) -> str:
        """The episode's end as text, for a client that asks again; empty while it is open."""
        if not self._end.done():
            return ""
        error = self._end.exception()
        if isinstance(error, AgentRLError):
            return f"failed({error.boundary}): {error}"
        status = self._end.result()
        return f"{status}: {status.detail}" if status.detail else str(status)

    async def close(self) -> None:
        """Refuses further requests and cancels those in flight; no turn is recorded afterwards."""
        self._end_with(
            Status(
                "cancelled",
                "closed",
                "its program exited, a deadline passed, or its run ended",
            )
        )
        generating = list(self._generating)
        for task in generating:
            task.cancel()
        if generating:
            await asyncio.wait(generating)

    def record_rewards(self, status: Status) -> None:
        """Stores the reported rewards in the last turn.

        Raises:
            RewardError: the episode terminated without rewards, and the rubric has no function.
        """
        builder = self._turns.builder
        has_rubric = bool(self._turns.context.rubric.weights)
        if status.kind == "terminated" and not self._rewards and not has_rubric:
            raise RewardError(
                f"task {builder.task.id!r}: the episode ended without a reward, and there is none "
                'to compute; POST {"reward": ...} to its /reward, or set RolloutSpec.rubric'
            )
        if self._rewards and builder.turns:
            builder.turns[-1] = replace(builder.turns[-1], rewards=dict(self._rewards))
            builder.reasons = dict(self._reasons)

    def _check_open(self) -> None:
        if how := self.how_ended():
            raise PolicyApiError(410, "episode_over", f"the episode has ended: {how}")

    def _end_with(self, status: Status) -> None:
        if not self._end.done():
            self._end.set_result(status)

    def _fail(self, error: AgentRLError) -> PolicyApiError:
        """Ends the episode as failed, and returns the client's error."""
        if not self._end.done():
            self._end.set_exception(error)
            # marks it as seen: the driver may have left already
            self._end.exception()
        return PolicyApiError(503, error.boundary, f"the policy cannot answer: {error}")

    def _turn_request(
        self, found: Continuation, new: tuple[Message, ...], request: ChatRequest
    ) -> TurnRequest:
        turns, entry = self._turns, found.entry
        earlier = AnswerConstraints() if entry is None else entry.constraints
        observed = with_instruction(new, request.constraints.instruction(earlier))
        sequence = (
            replace(turns.first_sequence(), cause=found.cause)
            if entry is None
            else entry.sequence
        )
        if self._has_first_sequence if entry is None else entry.extended:
            sequence = turns.in_new_session(sequence)
        try:
            turn_request = turns.next_request(sequence, observed, request.tools)
        except DataError as error:
            raise bad_request(str(error)) from error
        if isinstance(turn_request, TurnRequest):
            return turn_request
        detail = "; ".join(filter(None, [turn_request.detail, _size(request)]))
        status = replace(turn_request, detail=detail)
        if status.kind == "failed":
            self._end_with(status)
        self.context_status = status
        reason = ": ".join(filter(None, [status.reason, status.detail]))
        raise PolicyApiError(
            400,
            CONTEXT_EXCEEDED,
            f"the conversation leaves no room for an answer ({reason}); shorten it",
        )

    async def _run(self, turn_request: TurnRequest, stream: StreamWriter) -> TurnResult:
        """Generates until the turn is done, the episode ends, or the client leaves."""
        generating = asyncio.create_task(self._generate(turn_request, stream))
        self._generating.add(generating)
        leaving = asyncio.create_task(stream.disconnected())
        either: list[asyncio.Future[Any]] = [generating, self._end, leaving]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if generating.done() and not generating.cancelled():
                return generating.result()
            self._check_open()
            raise PolicyApiError(
                499,
                "client_closed_request",
                "the client went away before its answer was made",
            )
        finally:
            leaving.cancel()
            if not generating.done():
                generating.cancel()
                await asyncio.wait([generating])
            self._generating.discard(generating)

    async def _generate(
        self, turn_request: TurnRequest, stream: StreamWriter
    ) -> TurnResult:
        timeout_s = self._turns.context.spec.episode.turn_timeout_s
        try:
            async with Deadline(timeout_s, "turn_timeout"):
                sampling = self._sampling(stream.request, turn_request)
                stream.start(self._turns, turn_request, sampling.stop)
                turn = await self._turns.generate(
                    turn_request,
                    sampling=sampling,
                    for_client=True,
                    on_tokens=stream.on_tokens if stream.request.stream else None,
                )
                if turn is not None:
                    stream.check_completion(turn.completion)
        except LimitSpentError as spent:
            self._end_with(Status("truncated", str(spent)))
            raise PolicyApiError(
                410, "turn_timeout", f"the turn took longer than {timeout_s:g} s"
            ) from None
        except ServerError as error:
            if error.code != CONTEXT_EXCEEDED:
                raise self._fail(error) from error
            self.context_status = Status("truncated", "context_tokens")
            raise PolicyApiError(400, CONTEXT_EXCEEDED, str(error)) from error
        except AgentRLError as error:
            raise self._fail(error) from error
        if turn is None:
            self._end_with(Status("cancelled", "aborted"))
            raise PolicyApiError(
                503, "aborted", "the request was aborted by the engine's owner"
            )
        return turn

    async def _notes(self, request: ChatRequest, turn: TurnResult) -> dict[str, Any]:
        """The client's options that had no effect on the sampled tokens, and the constraints that
        the turn's calls and text violate.
        """
        ignored = dict(request.ignored)
        if not self._obey_sampling:
            own = self._turns.sampling
            ignored |= {
                k: v for k, v in request.sampling.items() if v != getattr(own, k, None)
            }
        constraints = request.constraints
        found = constraints.violations(turn.action, [tool.name for tool in request.tools])
        if constraints.schema and not turn.action.tool_calls:
            fault = await schema_fault(
                constraints.schema, str(turn.action.message["content"])
            )
            found += [f"response_format: {fault}"] if fault else []
        return {"ignored": ignored, "breaches": found}

    def _grammar(self, request: ChatRequest, turn_request: TurnRequest) -> str:
        """The schema that a grammar enforces.

        Empty for a turn that is trained, may call a tool, or begins within a reasoning block.
        """
        turns = self._turns
        constraints = request.constraints
        may_call = request.tools and constraints.calls != "none"
        # A grammar changes what is sampled: the logprobs would no more be those of the policy.
        is_eval = turns.builder.key.purpose == "eval"
        if not is_eval or may_call or turns.opened_reasoning(turn_request):
            return ""
        return constraints.schema if turns.context.engine.info().grammars else ""

    def _sampling(self, request: ChatRequest, turn_request: TurnRequest) -> SamplingParams:
        own = self._turns.sampling
        asked = request.sampling if self._obey_sampling else {}
        try:
            return replace(
                own,
                max_new_tokens=min(
                    own.max_new_tokens, request.max_tokens or own.max_new_tokens
                ),
                temperature=asked.get("temperature", own.temperature),
                top_p=asked.get("top_p", own.top_p),
                stop=tuple(dict.fromkeys((*own.stop, *request.stop))),
                json_schema=self._grammar(request, turn_request),
            )
        except ValueError as error:
            raise bad_request(str(error)) from None


def _size(request: ChatRequest) -> str:
    """How long a request is, and its largest tool."""
    said = sum(len(content_text(message["content"])) for message in request.messages)
    sizes = {tool.name: len(json.dumps(tool.openai())) for tool in request.tools}
    text = f"the request has {said + sum(sizes.values()):,} characters"
    if not sizes:
        return text
    largest = max(sizes, key=lambda name: sizes[name])
    return f"{text} and {len(sizes)} tools, the largest {largest!r} of {sizes[largest]:,}"


def _with_hidden_results(
    hidden: Sequence[ToolCall], new: tuple[Message, ...]
) -> tuple[Message, ...]:
    """The new messages, with results of the calls that the client did not get."""
    content = "This call was not run, since it was not asked for."
    not_run = [ToolResult(call.id, call.name, content).message() for call in hidden]
    results = next(
        (n for n, message in enumerate(new) if message["role"] != "tool"), len(new)
    )
    return (*new[:results], *not_run, *new[results:])
