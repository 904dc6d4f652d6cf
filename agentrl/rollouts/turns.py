"""The policy's turns, whoever acts between them: render, generate, hold to the golden rule, parse, record."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl.errors import EngineError
from agentrl.render import Renderer
from agentrl.render.retokenize import retok_frac, template_frac
from agentrl.rollouts.builder import SequenceState, TrajectoryBuilder
from agentrl.rollouts.context import EpisodeContext
from agentrl.rollouts.snapshots import EpisodeState
from agentrl.rollouts.token_consistency import assert_extends_context, assert_token_consistency
from agentrl.rollouts.tool_calls import bounded, renumbered
from agentrl.tools.parsers import MarkedFormat, opened_thoughts, read_completion
from agentrl.types import (
    Action,
    Completion,
    GenerateRequest,
    Message,
    ParsedMessage,
    SamplingParams,
    Segment,
    Status,
    ToolSpec,
    concat_ids,
    concat_media,
    images_in,
    seed_for,
)

__all__ = ["TurnGenerator", "TurnRequest", "TurnResult"]

OnTokens: TypeAlias = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], None]

_PROMPT_END = 16
"""Tokens before a turn that are looked at for an open block of thoughts."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnRequest:
    """A turn for which there is room.

    Args:
        head: where it goes on from; its messages are the whole conversation.
        observed: those of them that are new.
        context: the segments before the completion.
        tools: on offer.
        max_new_tokens: what the limits leave to the completion.
    """

    head: SequenceState
    observed: tuple[Message, ...]
    context: tuple[Segment, ...]
    tools: tuple[ToolSpec, ...]
    max_new_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class TurnResult:
    """A turn that was made and recorded: what the policy does, and where its sequence stands."""

    action: Action
    completion: Completion
    head: SequenceState


class TurnGenerator:
    """Makes the turns of one episode, on any of its sequences, one after another or at once.

    Args:
        parts: engine, renderer and parser.
        builder: where turns are recorded.
        sampling: how tokens are drawn.

    Attributes:
        num_calls: of the engine so far, which is the next one's number.
    """

    def __init__(
        self, parts: EpisodeContext, builder: TrajectoryBuilder, sampling: SamplingParams
    ) -> None:
        self.parts = parts
        self.builder = builder
        self.sampling = sampling
        self._sessions = {builder.key.session_id}
        self.num_calls = 0
        self._last_ready: TurnRequest | None = None

    def head(self) -> SequenceState:
        """The beginning of the episode, in the session of its name."""
        return SequenceState(self.builder.key.session_id)

    def resume(self, saved: EpisodeState) -> SequenceState:
        """The episode's turns are those of a checkpoint; where the next one goes on from, in this episode's session."""
        builder = self.builder
        builder.turns, builder.messages = list(saved.turns), saved.head.messages
        builder.restarts, builder.timings = saved.restarts, dict(saved.timings)
        builder.resumed_turns = len(saved.turns)
        self.num_calls = saved.num_calls
        return replace(saved.head, session_id=builder.key.session_id)

    def in_new_session(self, head: SequenceState) -> SequenceState:
        """``head`` with a KV session of its own, so that it may go on beside what its own session is used for."""
        session_id = f"{self.builder.key.session_id}+{len(self._sessions)}"
        self._sessions.add(session_id)
        return replace(head, session_id=session_id)

    def ready(
        self, head: SequenceState, observed: tuple[Message, ...], tools: tuple[ToolSpec, ...]
    ) -> TurnRequest | Status:
        """The next turn after ``observed``, or how the episode ends because there is no room for one.

        A sequence that cannot be extended, because its template rewrites history or its ids are not known, is gone on
        with as a new one, whose prompt is the whole conversation. One in which the policy itself wrote a token of
        images ends the episode: no engine could tell it from an image.

        Raises:
            DataError: messages that the renderer cannot write.
        """
        limits, renderer = self.parts.spec.limits, self.parts.renderer
        if renderer is None:
            return TurnRequest(head.after(observed), observed, (), tools, limits.max_turn_tokens)
        if (
            renderer.image_token_ids
            and np.isin(head.completion, list(renderer.image_token_ids)).any()
        ):
            return Status("truncated", "image_token")
        context = (
            renderer.extend(head.completion, observed, head.messages, tools)
            if head.ids.size
            else None
        )
        if context is None:
            head = head.beginning((*head.messages, *observed))
            context = renderer.prompt(head.messages, tools)
            prompt_tokens = sum(map(len, context))
            if prompt_tokens > limits.max_prompt_tokens:
                return self._no_room(
                    "data.max_prompt_tokens", limits.max_prompt_tokens, prompt_tokens
                )
        else:
            head, prompt_tokens = head.after(observed), head.prompt_tokens
        length = int(head.ids.size) + sum(map(len, context))
        if length >= limits.context_tokens:
            return self._no_room("rollout.context_tokens", limits.context_tokens, length)
        budget = min(
            limits.max_response_tokens - (length - prompt_tokens), limits.context_tokens - length
        )
        if budget < 1:
            return Status("truncated", "max_response_tokens")
        return TurnRequest(head, observed, context, tools, min(limits.max_turn_tokens, budget))

    async def make(
        self,
        ready: TurnRequest,
        *,
        agent: str = "main",
        sampling: SamplingParams | None = None,
        for_client: bool = False,
        on_tokens: OnTokens | None = None,
    ) -> TurnResult | None:
        """Generates and records a turn; None where its request was aborted.

        Args:
            ready: the turn.
            agent: whose it is.
            sampling: how tokens are drawn; the episode's own by default.
            for_client: a client of the episode's runs the calls: there may be any number of them, and their ids differ
                over the whole episode, not within the turn alone.
            on_tokens: see ``GenerateRequest.on_tokens``.

        Raises:
            EngineError: the engine failed, or broke the golden rule.
        """
        number, self.num_calls, self._last_ready = self.num_calls, self.num_calls + 1, ready
        chosen = sampling or self.sampling
        request = self._request(ready, agent, chosen, number, on_tokens)
        if ready.head.parent is not None and self.parts.renderer is not None:
            assert_extends_context(request, ready.head.ids)
        start = time.monotonic()
        completion = await self.parts.engine.generate(request)
        self.builder.count("generate_s", time.monotonic() - start)
        info = self.parts.engine.info()
        if info.returns_ids:
            assert_token_consistency(request, completion, info.vocab_size)
        if completion.finish_reason == "abort":
            return None
        sampled = concat_ids(completion.segments)
        text, parsed = await self._read(completion, sampled, ready, chosen.stop)
        if for_client:
            parsed = renumbered(parsed, number)
        else:
            parsed = bounded(parsed, self.parts.spec.limits.max_calls_per_turn)
        head = self.builder.add_turn(
            ready.head,
            observed=ready.observed,
            context=ready.context if info.returns_ids else (),
            sent=request.token_ids,
            completion=completion,
            sampled=sampled,
            parsed=parsed,
            text=text,
            agent=agent,
            sampling=chosen,
        )
        action = Action(
            text, parsed.message, parsed.tool_calls, parsed.problems, completion.finish_reason
        )
        return TurnResult(action, completion, head)

    def retokenized(self) -> dict[str, float]:
        """How the ids of the episode so far differ from those of its text; empty where that is not measured."""
        renderer, ready = self.parts.renderer, self._last_ready
        if renderer is None or ready is None or not self.parts.spec.measure_retokenization:
            return {}
        start = time.monotonic()
        share = retok_frac(self.builder.turns, renderer)
        measured = {} if share is None else {"retok_frac": share}
        if ready.head.ids.size:  # else the context is the template's own prompt
            context = concat_ids(ready.context, after=ready.head.ids)
            measured["template_frac"] = template_frac(
                context, ready.head.messages, ready.tools, renderer
            )
        elif measured:
            measured["template_frac"] = 0.0
        self.builder.count("retokenize_s", time.monotonic() - start)
        return measured

    async def release(self) -> str:
        """Frees the engine's sessions; says what went wrong there."""
        problems = []
        for session_id in sorted(self._sessions):
            try:
                await self.parts.engine.release(session_id)
            except EngineError as error:
                problems.append(f"engine.release: {error}")
        return "; ".join(problems)

    def _request(
        self,
        ready: TurnRequest,
        agent: str,
        sampling: SamplingParams,
        number: int,
        on_tokens: OnTokens | None,
    ) -> GenerateRequest:
        spec, key, renderer = self.parts.spec, self.builder.key, self.parts.renderer
        media = (*ready.head.media, *concat_media(ready.context, int(ready.head.ids.size)))
        images = {image.sha256: image for image in images_in(ready.head.messages)} if media else {}
        stops = renderer.stop_token_ids if renderer is not None else ()
        return GenerateRequest(
            request_id=f"{ready.head.session_id}/{number}",
            session_id=ready.head.session_id,
            token_ids=concat_ids(ready.context, after=ready.head.ids),
            sampling=_bounded(sampling, ready.max_new_tokens, stops),
            seed=seed_for(
                spec.root_seed,
                "sample",
                key.label,
                key.group_index,
                key.rollout_index,
                agent,
                number,
            ),
            media=media,
            images=tuple(images[span.sha256] for span in media),
            min_version=ready.head.policy_version,
            messages=ready.head.messages if renderer is None else (),
            tools=ready.tools if renderer is None else (),
            on_tokens=on_tokens,
        )

    def thoughts_opened(self, ready: TurnRequest) -> str:
        """``<think>`` where the template wrote it at the end of the turn's prompt, for a parser that reads it."""
        if self.parts.renderer is None or not ready.context:
            return ""
        opened = opened_thoughts(
            self.parts.renderer.decode(ready.context[-1].token_ids[-_PROMPT_END:])
        )
        return opened if opened and isinstance(self.parts.parser, MarkedFormat) else ""

    async def _read(
        self,
        completion: Completion,
        sampled: npt.NDArray[np.int32],
        ready: TurnRequest,
        stop: tuple[str, ...],
    ) -> tuple[str, ParsedMessage]:
        """The completion as text, cut at the first stop string in it where one ended it, and as a message."""
        text = completion.text
        if text is None:
            text = self._need_renderer().decode(sampled)
        if completion.stop_string is not None:
            found = [text.find(string) for string in {completion.stop_string, *stop}]
            text = text[: min((start for start in found if start >= 0), default=len(text))]
        if completion.parsed is not None:
            return text, completion.parsed
        return text, await read_completion(
            self.parts.parser, self.thoughts_opened(ready) + text, ready.tools
        )

    def _need_renderer(self) -> Renderer:
        if self.parts.renderer is None:
            raise EngineError(
                f"engine {self.parts.engine.info().name!r} gave ids without text, and there is no renderer to decode "
                "them; give the rollout a renderer",
                retryable=False,
            )
        return self.parts.renderer

    def _no_room(self, setting: str, limit: int, found: int) -> Status:
        """The end of an episode whose sequence is too long; where the very prompt is, the task is at fault."""
        if self.builder.turns:
            return Status("truncated", setting.rpartition(".")[2])
        return Status(
            "failed",
            "data",
            f"the prompt of task {self.builder.task.id!r} has {found} tokens, "
            f"{setting} is {limit}; raise it or leave the task out",
        )


@functools.lru_cache(maxsize=1024)
def _bounded(
    sampling: SamplingParams, max_new_tokens: int, stops: tuple[int, ...]
) -> SamplingParams:
    """``sampling`` for a turn that has room for so many tokens and ends at ``stops`` as well."""
    return replace(
        sampling,
        max_new_tokens=min(sampling.max_new_tokens, max_new_tokens),
        stop_token_ids=tuple(sorted({*sampling.stop_token_ids, *stops})),
    )
