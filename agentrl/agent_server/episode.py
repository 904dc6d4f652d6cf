"""One episode that its agent plays by asking for completions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agentrl.agent_server.api.answer_schema import schema_fault
from agentrl.agent_server.api.chat_request import ChatRequest, Refusal
from agentrl.agent_server.api.demands import Demands, with_words
from agentrl.agent_server.conversations import Threads
from agentrl.agent_server.history import Histories, Place
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.agent_server.turn_notes import note_answers, note_turn
from agentrl.errors import AgentRLError, DataError, RewardError, ServerError
from agentrl.llm import CONTEXT_EXCEEDED
from agentrl.rollouts.deadlines import LimitSpentError, within
from agentrl.rollouts.turns import TurnGenerator, TurnRequest, TurnResult
from agentrl.tools.parsers import PlainParser
from agentrl.types import Message, SamplingParams, Status, ToolCall

__all__ = ["ServedEpisode"]


class ServedEpisode:
    """Answers an agent's requests with turns of the policy until it ends, and keeps the rewards that it is told.

    A request whose messages go on from a turn extends that turn's sequence; any other begins a sequence. Requests may
    come at once and from several sequences in turn.

    Args:
        turns: of the episode.
        idle_timeout_s: seconds without a request after which the episode ends; None waits for ever.
        obey_sampling: draw as each request asks; otherwise as the episode's own sampling says, whatever a request
            asks, since tokens of several distributions cannot be trained together.
    """

    def __init__(
        self,
        turns: TurnGenerator,
        *,
        idle_timeout_s: float | None = None,
        obey_sampling: bool = False,
    ) -> None:
        self._turns = turns
        self._idle_timeout_s = idle_timeout_s
        self._obey_sampling = obey_sampling
        self._histories = Histories()
        self._rewards: dict[str, float] = {}
        self._making: set[asyncio.Task[TurnResult]] = set()
        self._begun = False
        self._last_active = time.monotonic()
        self._end: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.no_room: Status | None = None
        self.threads = Threads()

    @property
    def num_turns(self) -> int:
        """Turns that were made."""
        return len(self._turns.builder.turns)

    async def complete(
        self,
        request: ChatRequest,
        gone: Callable[[], Awaitable[object]] | None = None,
        telling: StreamWriter | None = None,
    ) -> TurnResult:
        """The policy's turn.

        Args:
            request: what is asked.
            gone: returns when nobody waits for the answer any more; the turn is then given up, and not recorded.
            telling: follows the turn while it is made.

        Raises:
            Refusal: there is no such turn; the episode may have ended by it.
        """
        self._check_open()
        if request.logprobs and self._turns.parts.renderer is None:
            raise Refusal(
                400, "invalid_request", "logprobs must be false here: the engine gives no token ids"
            )
        place, new = self._histories.find(request.messages, request.tools)
        new = _all_answered(place, new)
        words = request.demands.words(Demands() if place is None else place.demands)
        ready = self._ready(place, with_words(new, words), request)
        if self.num_turns + len(self._making) >= (most := self._turns.parts.spec.limits.max_turns):
            self._settle(Status("truncated", "max_turns"))
            raise Refusal(410, "max_turns", f"the episode has had its rollout.max_turns={most}")
        self._begun = True
        if place is not None:
            place.taken = True
            note_answers(self._turns.builder, place, new)
        try:
            made = await self._make(ready, request, gone, telling)
        finally:
            self._last_active = time.monotonic()
        self.no_room = None
        message, kept = request.demands.told(made.action, self._as_text(made, ready))
        told = (*request.messages, message)
        self._histories.add(Place(made.head, told, request.tools, request.demands, kept))
        breaches = list(
            request.demands.breaches(made.action, [tool.name for tool in request.tools])
        )
        if request.demands.schema and not made.action.tool_calls:
            fault = await schema_fault(request.demands.schema, str(made.action.message["content"]))
            breaches += [f"response_format: {fault}"] if fault else []
        note_turn(
            self._turns.builder, made, {"ignored": self._ignored(request), "breaches": breaches}
        )
        calls = tuple(call for call in made.action.tool_calls if call not in kept)
        return replace(made, action=replace(made.action, message=message, tool_calls=calls))

    def give_reward(self, value: float, name: str = "reward") -> None:
        """Sets a part of the episode's reward; a second call of a name replaces the first.

        Raises:
            Refusal: the episode has ended, or the value is no finite number.
        """
        self._check_open()
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not math.isfinite(value)
        ):
            raise Refusal(400, "invalid_request", f"reward must be a finite number, got {value!r}")
        self._last_active = time.monotonic()
        self._rewards[name] = float(value)

    def finish(self, truncated: str = "") -> None:
        """The agent ended the episode: terminated, or truncated for a reason.

        Raises:
            Refusal: the episode has ended already.
        """
        self._check_open()
        self._settle(Status("truncated", truncated) if truncated else Status("terminated"))

    async def until_end(self) -> Status:
        """How the episode ended by its agent, a limit, or silence.

        Raises:
            AgentRLError: the engine failed it.
        """
        while not self._end.done():
            left_s = self._idle_left_s()
            if left_s is not None and left_s <= 0:
                self._settle(Status("truncated" if self.num_turns else "cancelled", "idle_timeout"))
            else:
                await asyncio.wait([self._end], timeout=left_s)
        return self._end.result()

    def how_ended(self) -> str:
        """The episode's end, for a client that asks again; empty while it is open."""
        if not self._end.done():
            return ""
        error = self._end.exception()
        if isinstance(error, AgentRLError):
            return f"failed({error.boundary}): {error}"
        status = self._end.result()
        return f"{status}: {status.detail}" if status.detail else str(status)

    async def close(self) -> None:
        """Takes no more requests, and gives up those in flight: no turn is recorded from here on."""
        self._settle(
            Status("cancelled", "closed", "its program exited, a deadline passed, or its run ended")
        )
        making = list(self._making)
        for turn in making:
            turn.cancel()
        if making:
            await asyncio.wait(making)

    def record_rewards(self, status: Status) -> None:
        """Lays the rewards that came on the last turn.

        Raises:
            RewardError: the episode terminated without any, and no function of the rubric gives one.
        """
        builder = self._turns.builder
        if (
            status.kind == "terminated"
            and not self._rewards
            and not self._turns.parts.rubric.weights
        ):
            raise RewardError(
                f"task {builder.task.id!r}: the episode ended without a reward, and there is none to compute; POST "
                '{"reward": ...} to its /reward, or set reward.functions'
            )
        if self._rewards and builder.turns:
            builder.turns[-1] = replace(builder.turns[-1], rewards=dict(self._rewards))

    def _idle_left_s(self) -> float | None:
        """Seconds of silence that are left; all of them while a request is answered."""
        if self._idle_timeout_s is None or self._making:
            return self._idle_timeout_s
        return self._idle_timeout_s - (time.monotonic() - self._last_active)

    def _check_open(self) -> None:
        if how := self.how_ended():
            raise Refusal(410, "episode_over", f"the episode has ended: {how}")

    def _settle(self, status: Status) -> None:
        if not self._end.done():
            self._end.set_result(status)

    def _fail(self, error: AgentRLError) -> Refusal:
        """Ends the episode as failed; what its client is told."""
        if not self._end.done():
            self._end.set_exception(error)
            self._end.exception()  # whoever plays the episode may have gone already
        return Refusal(503, error.boundary, f"the policy cannot answer: {error}")

    def _ready(
        self, place: Place | None, observed: tuple[Message, ...], request: ChatRequest
    ) -> TurnRequest:
        turns = self._turns
        head = turns.head() if place is None else place.head
        if place.taken if place is not None else self._begun:
            head = turns.in_new_session(head)
        try:
            ready = turns.ready(head, observed, request.tools)
        except DataError as error:
            raise Refusal(400, "invalid_request", str(error)) from error
        if isinstance(ready, TurnRequest):
            return ready
        if ready.kind == "failed":
            self._settle(ready)
        self.no_room = ready
        raise Refusal(
            400,
            CONTEXT_EXCEEDED,
            f"the conversation leaves no room for an answer ({ready.reason}{': ' if ready.detail else ''}"
            f"{ready.detail}); shorten it",
        )

    async def _make(
        self,
        ready: TurnRequest,
        request: ChatRequest,
        gone: Callable[[], Awaitable[object]] | None,
        telling: StreamWriter | None,
    ) -> TurnResult:
        """Generates until the turn is made, the episode ends, or nobody waits any more."""
        making = asyncio.create_task(self._generate(ready, request, telling))
        self._making.add(making)
        leaving = None if gone is None else asyncio.ensure_future(gone())
        waited_for: set[asyncio.Future[object]] = {making, self._end}  # type: ignore[arg-type]
        if leaving is not None:
            waited_for.add(leaving)
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if making.done() and not making.cancelled():
                return making.result()
            self._check_open()
            raise Refusal(
                499, "client_closed_request", "the client went away before its answer was made"
            )
        finally:
            if leaving is not None:
                leaving.cancel()
            if not making.done():
                making.cancel()
                await asyncio.wait([making])
            self._making.discard(making)

    async def _generate(
        self, ready: TurnRequest, request: ChatRequest, telling: StreamWriter | None
    ) -> TurnResult:
        turns, timeout_s = self._turns, self._turns.parts.spec.limits.turn_timeout_s
        sampling = self._sampling(request, ready)
        try:
            async with within(timeout_s, "turn_timeout"):
                if telling is not None:
                    telling.begin(turns, ready, sampling.stop)
                listener = telling.hear if telling is not None and request.stream else None
                made = await turns.make(
                    ready, sampling=sampling, for_client=True, on_tokens=listener
                )
            if made is not None and telling is not None:
                telling.hold_against(made.completion)
        except LimitSpentError as spent:
            self._settle(Status("truncated", str(spent)))
            raise Refusal(
                410, "turn_timeout", f"the turn took longer than {timeout_s:g} s"
            ) from None
        except ServerError as error:
            if error.code != CONTEXT_EXCEEDED:
                raise self._fail(error) from error
            self.no_room = Status("truncated", "context_tokens")
            raise Refusal(400, CONTEXT_EXCEEDED, str(error)) from error
        except AgentRLError as error:
            raise self._fail(error) from error
        if made is None:
            self._settle(Status("cancelled", "aborted"))
            raise Refusal(503, "aborted", "the request was aborted by the engine's owner")
        return made

    def _as_text(self, made: TurnResult, ready: TurnRequest) -> Message:
        """The turn as a message whose calls are text."""
        return PlainParser().parse(self._turns.thoughts_opened(ready) + made.action.text).message

    def _ignored(self, request: ChatRequest) -> dict[str, Any]:
        """What the client asked for and did not get, since it is no matter of what was sampled."""
        own = self._turns.sampling
        asked = {} if self._obey_sampling else request.sampling
        return {
            **request.ignored,
            **{name: value for name, value in asked.items() if value != getattr(own, name, None)},
        }

    def _grammar(self, request: ChatRequest, ready: TurnRequest) -> str:
        """The schema that a grammar is to force: of no turn that is trained, may call, or begins within thoughts."""
        turns, demands = self._turns, request.demands
        free = request.tools and demands.calls != "none"
        if turns.builder.key.purpose != "eval" or free or turns.thoughts_opened(ready):
            return ""
        return demands.schema if turns.parts.engine.info().grammars else ""

    def _sampling(self, request: ChatRequest, ready: TurnRequest) -> SamplingParams:
        own = self._turns.sampling
        asked = request.sampling if self._obey_sampling else {}
        try:
            return replace(
                own,
                max_new_tokens=min(own.max_new_tokens, request.max_tokens or own.max_new_tokens),
                temperature=asked.get("temperature", own.temperature),
                top_p=asked.get("top_p", own.top_p),
                stop=tuple(dict.fromkeys((*own.stop, *request.stop))),
                json_schema=self._grammar(request, ready),
            )
        except ValueError as error:
            raise Refusal(400, "invalid_request", str(error)) from None


def _all_answered(place: Place | None, new: tuple[Message, ...]) -> tuple[Message, ...]:
    """The new messages, and answers to the calls that the client was not told of."""
    kept = place.kept if place is not None else ()
    results = next((n for n, message in enumerate(new) if message["role"] != "tool"), len(new))
    return (*new[:results], *(_not_run(call) for call in kept), *new[results:])


def _not_run(call: ToolCall) -> Message:
    content = "This call was not run, since it was not asked for."
    return {"role": "tool", "content": content, "tool_call_id": call.id, "name": call.name}
