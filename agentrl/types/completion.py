"""Completion: the request to a rollout engine and its answer, tokens in and tokens out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from agentrl.types.arrays import F32, I32, Experts, RoutingShape
from agentrl.types.blob import Image
from agentrl.types.messages import Message, ParsedMessage, ToolSpec
from agentrl.types.segment import MediaSpan, Segment

FinishReason = Literal["stop", "length", "abort"]
StaleKV = Literal["never", "within_call", "always"]
OnTokens: TypeAlias = Callable[[I32, F32], None]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of a completion.

    Args:
        max_new_tokens: the most tokens to sample.
        temperature: 0 is greedy; logprobs are then those at temperature 1.
        top_p, top_k, min_p: 1, 0 and 0 are off. Other values change the sampler's distribution,
            which training refuses without ``rollout.allow_biased_sampling``.
        stop_token_ids: tokens that end the completion; the sampled one is kept.
        stop: strings that end the completion; the last token is kept whole, and only the text is
            cut.
        json_schema: a JSON Schema that a grammar enforces (``EngineInfo.grammars``). It changes the
            distribution too, so only an episode that is never trained may set it.

    Raises:
        ValueError: a value outside its range, named.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    json_schema: str = ""

    def greedy(self) -> SamplingParams:
        """The likeliest token each time; limits and stops as they are."""
        return replace(self, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)

    def __post_init__(self) -> None:
        rules = (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            (
                "temperature",
                0.0 <= self.temperature < float("inf"),
                "finite and at least 0",
            ),
            ("top_p", 0.0 < self.top_p <= 1.0, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "at least 0 (0 is off)"),
            ("min_p", 0.0 <= self.min_p < 1.0, "in [0, 1)"),
            ("stop", all(self.stop), "non-empty strings"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise ValueError(
                    f"sampling.{name} must be {rule}, got {getattr(self, name)!r}"
                )

    @property
    def truncates(self) -> bool:
        """Whether the behaviour distribution differs from the softmax whose logprobs are
        recorded.
        """
        return (
            self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0 or bool(self.json_schema)
        )


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """A request for one completion.

    Args:
        request_id: unique among the requests in flight; ``abort`` names it.
        session_id: the KV cache of one sequence and its server; ``release`` names it.
        token_ids: ``[n]`` int32, the whole sequence so far, n >= 1; n = 0 for an engine that takes
            messages.
        sampling: the sampling parameters.
        seed: the key of the counter-based generator, whose counter is the token position.
        min_version: the lowest policy version that may answer.
        deadline_s: seconds of engine time after which the request fails; None for no deadline.
        media: spans of the images in the sequence, from its start.
        images: these images, one for each of ``media``, with their bytes.
        messages: the whole conversation, for an engine without ids (``EngineInfo.returns_ids``).
        tools: the tools on offer, for such an engine.
        num_alternatives: how many most likely tokens to give beside each sampled one
            (``Segment.alternatives``); an engine that cannot gives none.
        experts_from: the first position whose experts are wanted, of a model that has any.
        on_tokens: gets the ids and logprobs ``[k]`` that were sampled since its last call. The
            engine calls it from any of its threads; it returns at once and never raises. An engine
            that cannot stream never calls it, so the completion alone holds all tokens.
    """

    request_id: str
    session_id: str
    token_ids: I32
    sampling: SamplingParams
    seed: int
    min_version: int = 0
    deadline_s: float | None = None
    media: tuple[MediaSpan, ...] = ()
    images: tuple[Image, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    num_alternatives: int = 0
    experts_from: int = 0
    on_tokens: OnTokens | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The engine's own token counts, against which token consistency is asserted.

    Args:
        prompt_tokens: ids that the engine was given.
        completion_tokens: ids that it sampled.
        kv_tokens: positions in its KV cache after the call, if it can tell. The last sampled token
            has no KV yet.
    """

    prompt_tokens: int
    completion_tokens: int
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One finished completion.

    Args:
        request_id: the request's.
        segments: POLICY segments, one a policy version, in order; empty for an engine without ids
            and logprobs.
        text: the text, from an engine without ids; None if the caller decodes the ids.
        parsed: the assistant's message, from an engine that parses it; None if the caller parses
            the text.
        finish_reason: ``stop`` (a stop token or string), ``length``, or ``abort``.
        stop_string: the stop string that matched, if one did.
        usage: the engine's own token counts.
        cached_tokens: prompt tokens whose KV was reused.
        stale_kv: the rule under which KV of an older version was used.
        timings: seconds by stage, such as ``queue_s``, ``prefill_s`` and ``decode_s``.
        routed_experts: ``[n - 1 - experts_from, L, k]`` the experts of the sequence's tokens, from
            ``GenerateRequest.experts_from`` to the last but one of all n, since the last has not
            been read yet; fewer where the call was aborted. None from an engine that does not tell.
    """

    request_id: str
    segments: tuple[Segment, ...]
    finish_reason: FinishReason
    usage: TokenUsage
    text: str | None = None
    parsed: ParsedMessage | None = None
    stop_string: str | None = None
    cached_tokens: int = 0
    stale_kv: StaleKV = "never"
    timings: Mapping[str, float] = field(default_factory=dict)
    routed_experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The facts of an engine that its clients need.

    Args:
        name: the engine's name.
        model: the model's name.
        vocab_size: ids are below it.
        context_tokens: the longest sequence.
        policy_version: the version that is served.
        returns_ids: whether it takes and returns token ids.
        grammars: whether it can enforce ``SamplingParams.json_schema``.
        routing: of a model whose experts its completions tell.
    """

    name: str
    model: str
    vocab_size: int
    context_tokens: int
    policy_version: int
    returns_ids: bool = True
    grammars: bool = False
    routing: RoutingShape | None = None
