"""Turn generator: generates, checks, parses and records the policy's turns.

- It does not know what acts between the turns: an environment or an agent program.
- A turn's sequence is exactly the ids that the engine was given and sampled in that call.
- Ids that the model sampled are never encoded again.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentrl.errors import AgentRLError, EngineError, ToolError
from agentrl.render.retokenize import retok_frac, template_frac, unknown_frac
from agentrl.rollouts.builder import SequenceState, TrajectoryBuilder, TurnRequest
from agentrl.rollouts.context import EpisodeContext
from agentrl.rollouts.deadlines import counted_now
from agentrl.rollouts.states.snapshots import EpisodeState, SeatState
from agentrl.rollouts.token_consistency import (
    assert_extends_context,
    assert_token_consistency,
)
from agentrl.rollouts.tool_calls import bounded, renumbered
from agentrl.store.json_text import to_json
from agentrl.tools.parsers import MarkedFormat, read_completion
from agentrl.types import (
    Action,
    Blob,
    Completion,
    GenerateRequest,
    Message,
    ParsedMessage,
    SamplingParams,
    Status,
    ToolSpec,
    concat_ids,
    concat_media,
    images_in,
    seed_for,
)
from agentrl.types.completion import OnTokens
from agentrl.types.messages import opened_thoughts
from agentrl.types.user_code.values import shown
from agentrl.types.user_code.wall import failed_as, wall

_PROMPT_END = 16
"""Tokens at the end of a turn's prompt that are searched for an open reasoning block."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnResult:
    """A recorded turn: the policy's action, the engine's completion, and the extended sequence."""

    action: Action
    completion: Completion
    sequence: SequenceState


class TurnGenerator:
    """Generates the turns of one episode, on any of its sequences, one by one or concurrently.

    All methods are called in the episode's event loop.

    Args:
        context: engine, renderer and parser.
        builder: records the turns.
        sampling: the episode's sampling parameters.
        session_id: the KV session of its first sequence; by default the episode's own.

    Attributes:
        num_calls: engine calls so far, which is the number of the next one.
        tools_in_messages: tools on offer that no prompt lists, by whose schemas calls are read.
    """

    def __init__(
        self,
        context: EpisodeContext,
        builder: TrajectoryBuilder,
        sampling: SamplingParams,
        *,
        session_id: str = "",
    ) -> None:
        self.context = context
        self.builder = builder
        self.sampling = sampling
        self.num_calls = 0
        self.tools_in_messages: tuple[ToolSpec, ...] = ()
        self._session_id = session_id or builder.key.session_id
        self._sessions = {self._session_id}
        self._of_agents: dict[str, TurnGenerator] = {}
        self._last_request: TurnRequest | None = None
        self._offered: tuple[tuple[ToolSpec, ...], Blob | None] = ((), None)

    def first_sequence(self) -> SequenceState:
        """The empty sequence at the episode's beginning, in a KV session of its own."""
        return SequenceState(self._session_id)

    @property
    def has_asked(self) -> bool:
        """Whether any agent's engine was asked for a turn."""
        return any(own.num_calls for own in (self, *self._of_agents.values()))

    def of_agent(self, agent: str) -> TurnGenerator:
        """The generator of an agent's turns, which has its own sequences and engine. The first
        agent of the policy's engine has this one.
        """
        if agent not in self._of_agents:
            context = self.context.of_agent(agent)
            is_first = self not in self._of_agents.values()
            self._of_agents[agent] = (
                self
                if context is self.context and is_first
                else TurnGenerator(
                    context,
                    self.builder,
                    self.sampling,
                    session_id=f"{self._session_id}.{len(self._of_agents)}",
                )
            )
        return self._of_agents[agent]

    def resume(self, saved: EpisodeState) -> None:
        """Takes over the turns of a checkpoint; ``resume_seat`` does an agent's sequence."""
        builder = self.builder
        builder.turns = list(saved.turns)
        builder.conversations = {
            agent: seat.sequence.messages for agent, seat in saved.seats.items()
        }
        builder.messages = builder.conversations[saved.turns[-1].agent]
        builder.unclaimed = dict(saved.unclaimed)
        builder.restarts = Counter(saved.restarts)
        builder.timings = dict(saved.timings)
        builder.first_state = saved.first_state
        builder.resumed_turns = len(saved.turns)

    def resume_seat(self, seat: SeatState) -> SequenceState:
        """Takes over an agent's state of a checkpoint.

        Returns:
            The sequence that its next turn extends, in this attempt's KV session.
        """
        self.num_calls = seat.num_calls
        return replace(seat.sequence, session_id=self._session_id)

    def in_new_session(self, sequence: SequenceState) -> SequenceState:
        """``sequence`` in a new KV session, so that two turns can extend it concurrently."""
        session_id = f"{self._session_id}+{len(self._sessions)}"
        self._sessions.add(session_id)
        return replace(sequence, session_id=session_id)

    def next_request(
        self,
        sequence: SequenceState,
        observed: tuple[Message, ...],
        tools: tuple[ToolSpec, ...],
    ) -> TurnRequest | Status:
        """The next turn after ``observed``, or the episode's end if there is no room for a turn.

        - A sequence cannot be extended if its template rewrites history or its ids are unknown. The
          turn then begins a new sequence, whose prompt is the whole conversation.
        - A completion with an image token that the policy sampled ends the episode, because no
          engine can tell it from an image.

        Raises:
            DataError: the renderer cannot write the messages.
        """
        spec = self.context.spec
        limits = spec.episode
        renderer = self.context.renderer
        if renderer is None:
            return TurnRequest(
                sequence.extended(observed), observed, (), tools, limits.max_turn_tokens
            )
        image_ids = renderer.image_token_ids
        if image_ids and np.isin(sequence.completion, list(image_ids)).any():
            return Status("truncated", "image_token")
        fewest = renderer.fewest_tokens(observed)
        if fewest >= spec.context_tokens:
            return self._no_room("rollout.context_tokens", fewest, "at least ")
        segments = None
        if sequence.ids.size:
            segments = renderer.extend(
                sequence.completion, observed, sequence.messages, tools
            )
        # The template rewrites what was said, or there is nothing to extend: the whole conversation
        # becomes a new prompt.
        if segments is None:
            # one without a turn says itself why it begins
            cause = sequence.cause if sequence.parent is None else "template"
            sequence = sequence.restarted((*sequence.messages, *observed), cause)
            segments = renderer.prompt(sequence.messages, tools)
            prompt_tokens = sum(map(len, segments))
            if prompt_tokens > spec.max_prompt_tokens:
                return self._no_room("data.max_prompt_tokens", prompt_tokens)
        else:
            sequence = sequence.extended(observed)
            prompt_tokens = sequence.prompt_tokens
        length = int(sequence.ids.size) + sum(map(len, segments))
        if length >= spec.context_tokens:
            return self._no_room("rollout.context_tokens", length)
        budget = min(
            limits.max_response_tokens - (length - prompt_tokens),
            spec.context_tokens - length,
        )
        if budget < 1:
            return Status("truncated", "max_response_tokens")
        return TurnRequest(
            sequence, observed, segments, tools, min(limits.max_turn_tokens, budget)
        )

    async def generate(
        self,
        turn: TurnRequest,
        *,
        agent: str = "main",
        sampling: SamplingParams | None = None,
        for_client: bool = False,
        on_tokens: OnTokens | None = None,
    ) -> TurnResult | None:
        """Generates and records a turn; None if its request was aborted.

        Args:
            turn: the turn.
            agent: the name of the agent whose turn it is.
            sampling: overrides the episode's sampling.
            for_client: a client of the episode runs the calls. Their number is then not bounded,
                and their ids are unique in the episode instead of in the turn.
            on_tokens: see ``GenerateRequest.on_tokens``.

        Raises:
            EngineError: the engine failed.
            TokenMismatchError: the engine violated token consistency.
        """
        engine = self.context.engine
        number = self.num_calls
        # Calls are counted before they are waited for: several turns may be generated at once.
        self.num_calls += 1
        self._last_request = turn
        chosen = sampling or self.sampling
        request = self._engine_request(turn, agent, chosen, number, on_tokens)
        # Compared before the request is sent: an engine would answer for other tokens without a
        # word.
        if turn.sequence.parent is not None and self.context.renderer is not None:
            assert_extends_context(request, turn.sequence.ids)
        start = time.monotonic()
        counted = counted_now()
        self.builder.wait_for("the model")
        # An engine may be anybody's, and one that raises costs this episode alone. A person who
        # plays as one leaves by KeyboardInterrupt.
        passes = (AgentRLError, KeyboardInterrupt)
        with wall(failed_as(EngineError, "the engine raised"), passes=passes):
            completion = await engine.generate(request)
        self.builder.wait_for("what acts between turns")
        seconds = time.monotonic() - start
        # Seconds in which the engine was paused for new weights are no part of the turn's own time.
        paused = seconds - (counted_now() - counted)
        self.builder.count("generate_s", seconds)
        info = engine.info()
        if info.returns_ids:
            assert_token_consistency(request, completion, info.vocab_size, info.routing)
        if completion.finish_reason == "abort":
            return None
        text, parsed = await self._parse(completion, turn, chosen.stop)
        if for_client:
            parsed = renumbered(parsed, number)
        else:
            parsed = bounded(parsed, self.context.spec.episode.max_calls_per_turn)
        sequence = self.builder.add_turn(
            turn if info.returns_ids else replace(turn, segments=()),
            request,
            completion,
            message=parsed.message,
            text=text,
            agent=agent,
            sampling=chosen,
            asked_at=start,
            offered_tools=self._offered_tools(turn.tools),
            timings={
                "generate_s": seconds,
                **({"paused_s": paused} if paused > 1e-3 else {}),
            },
        )
        action = Action(
            text,
            parsed.message,
            parsed.tool_calls,
            parsed.problems,
            completion.finish_reason,
        )
        return TurnResult(action, completion, sequence)

    def measure_retokenization(self) -> dict[str, float]:
        """How far the episode's ids differ from those of its re-encoded text.

        Returns:
            ``unknown_frac``, and if the spec asks for them ``retok_frac`` and ``template_frac``.
        """
        renderer = self.context.renderer
        last = self._last_request
        if renderer is None or last is None:
            return {}
        unknown = unknown_frac(self.builder.turns, renderer)
        measured = {} if unknown is None else {"unknown_frac": unknown}
        if not self.context.spec.episode.measure_retokenization:
            return measured
        start = time.monotonic()
        share = retok_frac(self.builder.turns, renderer)
        measured |= {} if share is None else {"retok_frac": share}
        sequence = last.sequence
        if sequence.ids.size:
            ids = concat_ids(last.segments, after=sequence.ids)
            measured["template_frac"] = template_frac(
                ids, sequence.messages, last.tools, renderer
            )
        elif measured:  # the ids are the template's own prompt
            measured["template_frac"] = 0.0
        self.builder.count("retokenize_s", time.monotonic() - start)
        return measured

    def opened_reasoning(self, turn: TurnRequest) -> str:
        """``<think>`` if the template wrote it at the end of the turn's prompt and the parser reads
        it.
        """
        renderer = self.context.renderer
        if renderer is None or not turn.segments:
            return ""
        opened = opened_thoughts(
            renderer.decode(turn.segments[-1].token_ids[-_PROMPT_END:])
        )
        return opened if opened and isinstance(self.context.parser, MarkedFormat) else ""

    async def release(self) -> str:
        """Releases the engines' KV sessions, and returns the problems."""
        problems = []
        for own in dict.fromkeys((self, *self._of_agents.values())):
            for session_id in sorted(own._sessions):
                try:
                    with wall(failed_as(EngineError, "the engine raised")):
                        await own.context.engine.release(session_id)
                except EngineError as error:
                    problems.append(f"engine.release: {error}")
        return "; ".join(problems)

    def _engine_request(
        self,
        turn: TurnRequest,
        agent: str,
        sampling: SamplingParams,
        number: int,
        on_tokens: OnTokens | None,
    ) -> GenerateRequest:
        renderer = self.context.renderer
        sequence = turn.sequence
        key = self.builder.key
        media = (*sequence.media, *concat_media(turn.segments, int(sequence.ids.size)))
        images = (
            {image.sha256: image for image in images_in(sequence.messages)} if media else {}
        )
        return GenerateRequest(
            request_id=f"{sequence.session_id}/{number}",
            session_id=sequence.session_id,
            token_ids=concat_ids(turn.segments, after=sequence.ids),
            sampling=_bounded_sampling(
                sampling, turn.max_new_tokens, renderer.stop_token_ids if renderer else ()
            ),
            seed=seed_for(
                self.context.spec.root_seed,
                "sample",
                key.label,
                key.group_index,
                key.rollout_index,
                agent,
                number,
            ),
            media=media,
            images=tuple(images[span.sha256] for span in media),
            min_version=sequence.policy_version,
            messages=sequence.messages if renderer is None else (),
            tools=turn.tools if renderer is None else (),
            num_alternatives=self.context.spec.num_alternatives,
            # the sequence's last token was sampled, and is read by this call
            experts_from=max(int(sequence.ids.size) - 1, 0),
            on_tokens=on_tokens,
        )

    def _offered_tools(self, tools: tuple[ToolSpec, ...]) -> Blob | None:
        """The tools of a turn as its record names them; turns with equal ones share them."""
        if tools != self._offered[0]:
            text = to_json([tool.openai() for tool in tools])
            self._offered = (tools, Blob.of(text.encode()) if tools else None)
        return self._offered[1]

    async def _parse(
        self, completion: Completion, turn: TurnRequest, stop: tuple[str, ...]
    ) -> tuple[str, ParsedMessage]:
        """The completion as text and as a message.

        The text ends before the first stop string in it if one ended the completion.
        """
        text = completion.text
        if text is None:
            if self.context.renderer is None:
                name = self.context.engine.info().name
                raise EngineError(
                    f"engine {name!r} gave ids without text, and there is no renderer to decode "
                    "them; give the rollout a renderer",
                    retryable=False,
                )
            text = self.context.renderer.decode(concat_ids(completion.segments))
        if completion.stop_string is not None:
            found = [text.find(string) for string in {completion.stop_string, *stop}]
            text = text[: min((start for start in found if start >= 0), default=len(text))]
        if completion.parsed is not None:
            return text, completion.parsed
        whole = self.opened_reasoning(turn) + text
        tools = (*turn.tools, *self.tools_in_messages)
        parser = self.context.parser
        name = f"the parser {type(parser).__name__}"
        with wall(failed_as(ToolError, f"{name} raised", " for a completion; correct it")):
            parsed: Any = await read_completion(parser, whole, tools)
        if not isinstance(parsed, ParsedMessage):
            raise ToolError(
                f"{name} must give a ParsedMessage, got {shown(parsed)}; correct it"
            )
        return text, parsed

    def _no_room(self, setting: str, length: int, bound: str = "") -> Status:
        """The end of an episode whose sequence is too long; a prompt that is too long is a data
        error.
        """
        limit = setting.rpartition(".")[2]
        if self.builder.turns:
            return Status("truncated", limit)
        return Status(
            "failed",
            "data",
            f"the prompt of task {self.builder.task.id!r} has {bound}{length} tokens, {setting} is "
            f"{getattr(self.context.spec, limit)}; raise it or leave the task out",
        )


@functools.lru_cache(maxsize=1024)
def _bounded_sampling(
    sampling: SamplingParams, max_new_tokens: int, stops: tuple[int, ...]
) -> SamplingParams:
    """``sampling`` with the turn's token budget and the renderer's stop tokens."""
    return replace(
        sampling,
        max_new_tokens=min(sampling.max_new_tokens, max_new_tokens),
        stop_token_ids=tuple(sorted({*sampling.stop_token_ids, *stops})),
    )
