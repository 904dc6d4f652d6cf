"""Engine checks: a request against an engine, and an engine against the contract."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import EnginePlace, EngineSpec, EngineTraits, HostedEngine, WeightSender
from agentrl.engines.find import engines_with
from agentrl.errors import EngineError
from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    RoutingShape,
    SamplingParams,
    concat_ids,
)
from agentrl.types.user_code.contract import BrokenRuleError, Contract, hold

_NEW_TOKENS = 4
_SAME_LOGPROB = 1e-3
"""By which two logprobs of one token in one answer may differ: nats, and a share of their size."""


def check_engine(
    spec: EngineSpec,
    place: EnginePlace,
    *,
    sender: WeightSender | None = None,
    tensors: Iterable[tuple[str, Any]] = (),
) -> None:
    """Holds an engine to the contract of ``agentrl.engines.base``: it is built, used and closed.

    Args:
        spec: of the engine.
        place: a small model's folder, and sizes.
        sender: see ``EngineSpec.build``.
        tensors: of a whole update under Hugging Face names; without any, updates are only given up.

    Raises:
        ConfigError: every rule that it breaks, by name, with what was found.
    """
    checked = _CheckedEngine(spec, place)
    checked.specification()
    if not checked.broken:
        checked.engine(sender, list(tensors))
    checked.conclude(type(spec).__name__, "engines' contract (docs/engines.md)")


class _CheckedEngine(Contract):
    """An engine under test."""

    def __init__(self, spec: EngineSpec, place: EnginePlace) -> None:
        super().__init__()
        self._spec = spec
        self._place = place
        self._built: Any = None
        self._count = 0

    def specification(self) -> None:
        """Rules that need no engine."""
        spec = self._spec
        with self.rule("a specification names its section"):
            hold(isinstance(spec, EngineSpec), f"{spec!r} is no EngineSpec")
            hold(spec.section.isidentifier(), f"section is {spec.section!r}")
        with self.rule("a specification is picklable"):
            hold(pickle.loads(pickle.dumps(spec)) == spec, "it comes back as another one")
        with self.rule("traits() tells the engine's abilities"):
            traits = spec.traits()
            hold(isinstance(traits, EngineTraits), f"got {traits!r}")

    def engine(self, sender: WeightSender | None, tensors: list[tuple[str, Any]]) -> None:
        """Rules of a built engine, from its first request to its end."""
        with self.rule("build() returns an engine with both faces"):
            self._built = self._spec.build(self._spec.resolve(self._place), sender)
            faces = [name for name in dir(HostedEngine) if not name.startswith("_")]
            missing = [name for name in faces if not callable(getattr(self._built, name, None))]
            hold(not missing, f"it has no {', '.join(missing)}()")
        if self.broken:
            return
        for check in (self._information, self._answers, self._pauses, self._score):
            check()
        if sender is not None or self._spec.traits().transport is None:
            self._updates(tensors)
        self._ends()

    def _information(self) -> None:
        with self.rule("info() and layout() are those of the place"):
            info = self._built.info()
            dtype = self._built.layout().dtype
            found = (info.context_tokens, info.returns_ids, dtype)
            returns_ids = self._spec.traits().returns_ids
            wanted = (self._place.context_tokens, returns_ids, self._place.dtype)
            hold(found == wanted, f"context_tokens, returns_ids, dtype are {found}, not {wanted}")
        with self.rule("a new engine is serving"):
            self._hold_state("serving", "build()")

    def _answers(self) -> None:
        with self.rule("a completion accounts for every token"):
            completion = self._answer()
            ids = concat_ids(completion.segments)
            logprobs = sum(
                segment.logprobs.size
                for segment in completion.segments
                if segment.logprobs is not None
            )
            usage = completion.usage
            counts = (usage.prompt_tokens, usage.completion_tokens, logprobs)
            hold(
                counts == (3, ids.size, ids.size),
                f"3 ids went in and {ids.size} came out, prompt, completion and logprobs are "
                f"{counts}",
            )
            hold(ids.size <= _NEW_TOKENS, f"{ids.size} of {_NEW_TOKENS} tokens came")
        with self.rule("a completion carries the version served"):
            self._hold_version(self._built.info().policy_version, "is served")
        with self.rule("alternatives are the likeliest tokens beside each sampled one"):
            _hold_alternatives(self._answer(), 0)
            _hold_alternatives(self._answer(num_alternatives=3), 3)
        with self.rule("experts, where it tells any, are of every token that it has read"):
            completion = self._answer()
            read = 2 + concat_ids(completion.segments).size
            fault = experts_fault(completion, read, self._built.info().routing)
            hold(not fault, fault)
        with self.rule("ids outside the vocabulary are refused, not to be tried again"):
            self._refused(lambda: self._answer(self._built.info().vocab_size), final=True)
        if self._spec.traits().deterministic and self._place.deterministic:
            with self.rule("a deterministic engine repeats itself"):
                one, two = (concat_ids(self._answer().segments).tolist() for _ in range(2))
                hold(one == two, "the same request gave other tokens")

    def _pauses(self) -> None:
        with self.rule("a paused engine says so, and answers after resume()"):
            self._built.pause("retract")
            self._hold_state("paused", "pause('retract')")
            asyncio.run(self._answered_after_resume())
        with self.rule("begin_update() needs a paused engine"):
            self._refused(lambda: self._built.begin_update(1))

    def _score(self) -> None:
        with self.rule("score() gives a logprob for every token but the first, of every server"):
            scores = self._built.score((0, 1, 2))
            hold(bool(scores), "no server has a score")
            for server, logprobs in scores.items():
                good = logprobs.shape == (2,) and bool((logprobs <= 0).all())
                hold(good, f"{server} gave {logprobs!r}")

    def _updates(self, tensors: list[tuple[str, Any]]) -> None:
        with self.rule("an update that is given up before a tensor changes nothing"):
            version = self._built.info().policy_version
            self._built.pause("retract")
            self._built.begin_update(version + 1).abort()
            self._built.resume()
            hold(self._built.info().policy_version == version, "another version is served")
        if not tensors:
            return
        with self.rule("a committed update is served under its version"):
            version = self._built.info().policy_version + 1
            self._built.pause("retract")
            session = self._built.begin_update(version)
            for name, tensor in tensors:
                session.put(name, tensor)
            session.commit()
            self._built.resume()
            self._hold_version(version, "was committed")
        if hasattr(self._built, "read"):
            with self.rule("read() gives the tensors that were put"):
                for name, tensor in tensors:
                    found = self._built.read(name)
                    hold(bool((found == tensor.to(found)).all()), f"{name} is another one")
        with self.rule("an incomplete update leaves a corrupt engine"):
            self._built.pause("retract")
            session = self._built.begin_update(version + 1)
            session.put(*tensors[0])
            self._refused(session.commit)
            self._hold_state("corrupt", "commit()")
            self._refused(self._answer)

    def _ends(self) -> None:
        with self.rule("a closed engine says so, and answers nothing"):
            self._built.close()
            self._hold_state("closed", "close()")
            self._refused(self._answer)

    def _hold_state(self, wanted: str, after: str) -> None:
        state = self._built.health().state
        hold(state == wanted, f"after {after} it is {state}")

    def _hold_version(self, version: int, how: str) -> None:
        found = {part.policy_version for part in self._answer().segments}
        hold(found <= {version}, f"{found}, and {version} {how}")

    def _answer(self, token: int = 2, num_alternatives: int = 0) -> Completion:
        return asyncio.run(self._generate(token, num_alternatives))

    async def _generate(self, token: int = 2, num_alternatives: int = 0) -> Completion:
        self._count += 1
        name = f"check-{self._count}"
        sampling = SamplingParams(max_new_tokens=_NEW_TOKENS)
        ids = np.array([0, 1, token], np.int32)
        completion: Completion = await self._built.generate(
            GenerateRequest(name, name, ids, sampling, seed=1, num_alternatives=num_alternatives)
        )
        return completion

    async def _answered_after_resume(self) -> None:
        waiting = asyncio.ensure_future(self._generate())
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        hold(not done, "a request was answered in the pause")
        await asyncio.to_thread(self._built.resume)
        await waiting

    def _refused(self, call: Callable[[], object], *, final: bool = False) -> None:
        try:
            call()
        except EngineError as error:
            hold(not (final and error.retryable), "the error is retryable")
            return
        raise BrokenRuleError("no EngineError was raised")


def _hold_alternatives(completion: Completion, asked: int) -> None:
    """Holds what an engine gave beside its sampled tokens; it may give nothing."""
    for segment in completion.segments:
        if segment.alternatives is None or segment.logprobs is None:
            continue
        ids, logprobs = segment.alternatives
        shape = (len(segment), asked)
        hold(asked > 0, "they came, and the request asked for none")
        hold(ids.shape == logprobs.shape == shape, f"{ids.shape} came in place of {shape}")
        falls = bool((logprobs[:, 1:] <= logprobs[:, :-1]).all())
        hold(falls, f"their logprobs do not fall: {logprobs}")
        same = ids == segment.token_ids[:, None]
        hold(bool((same.sum(1) <= 1).all()), f"a token is its own alternative twice: {ids}")
        own = np.broadcast_to(segment.logprobs[:, None], shape)
        close = _SAME_LOGPROB * (1 + np.abs(own))
        unlike = (np.abs(logprobs - own) - close)[same].max(initial=0)
        hold(
            bool(unlike <= 0),
            f"the sampled token's own logprob among them differs by {unlike:.2g} too much",
        )
        above = (own - close - logprobs)[~same.any(1), -1].max(initial=0)
        hold(
            bool(above <= 0),
            f"a sampled token that is not among them is likelier than the last by {above:.2g}",
        )


def experts_fault(completion: Completion, read: int, routing: RoutingShape | None) -> str:
    """How the experts that a completion tells are not those of its tokens; empty where they may be,
    or there are none.

    Args:
        completion: of an engine.
        read: tokens that the call has read, from ``GenerateRequest.experts_from`` on.
        routing: of the engine's ``info()``.
    """
    record = completion.routed_experts
    if record is None:
        return ""
    if routing is None:
        return "experts came back, and the engine's info() tells no routing of its model"
    if len(record) > read or (len(record) < read and completion.finish_reason != "abort"):
        return f"{read} tokens were read, the experts of {len(record)} came back"
    fault = routing.fault(record)
    return fault and f"the experts that came back are another model's: {fault}"


def check_request(
    request: GenerateRequest, info: EngineInfo, *, stop_strings: bool, images: bool = False
) -> None:
    """Checks a request against the engine that is to serve it.

    Args:
        request: what is asked.
        info: the engine's vocabulary and context.
        stop_strings: whether the engine can match stop strings.
        images: whether it takes images.

    Raises:
        EngineError: not retryable; names the request, the rule, the value and the remedy.
    """
    ids = request.token_ids
    sampling = request.sampling
    context = info.context_tokens
    problem = ""
    if ids.ndim != 1 or ids.size < 1 or ids.dtype.kind not in "iu":
        problem = (
            "token_ids must be one dimension of at least one integer, got "
            f"{ids.dtype} of shape {ids.shape}"
        )
    elif (wrong := first_outside(ids, info.vocab_size)) is not None:
        problem = (
            f"token_ids must lie in [0, {info.vocab_size}), the vocabulary of {info.model}, got "
            f"{wrong}; encode with the model's own tokenizer"
        )
    elif ids.size + sampling.max_new_tokens > context:
        problem = (
            f"prompt and max_new_tokens must fit the engine's context_tokens={context}, got "
            f"{ids.size} + "
            f"{sampling.max_new_tokens}; shorten one, or raise EnginePlace.context_tokens"
        )
    elif not 0 <= request.num_alternatives <= info.vocab_size:
        problem = (
            f"num_alternatives must lie between 0 and the vocabulary's {info.vocab_size}, got "
            f"{request.num_alternatives}; ask for fewer"
        )
    elif request.media and not images:
        problem = (
            f"engine {info.name!r} with {info.model} takes no images, got {len(request.media)}; "
            f"use a model that sees, and the engine {engines_with('returns_ids', 'images')}"
        )
    elif [span.sha256 for span in request.media] != [image.sha256 for image in request.images]:
        problem = (
            "images must be those of media, one each, got "
            f"{len(request.images)} for {len(request.media)}"
        )
    elif sampling.stop and not stop_strings:
        problem = (
            f"engine {info.name!r} was built without a way to decode, so it cannot match stop "
            f"strings, got {sampling.stop}; use stop_token_ids, or give its specification decode="
        )
    elif sampling.json_schema and not info.grammars:
        problem = (
            f"engine {info.name!r} has no grammars, so it cannot force a completion to fit "
            f"json_schema, got {sampling.json_schema:.80}; ask for it in words"
        )
    if problem:
        raise EngineError(f"request {request.request_id!r}: {problem}", retryable=False)


def chosen(sampling: SamplingParams, *names: str) -> dict[str, Any]:
    """Those of some parameters that differ from their defaults, as JSON has them: a server is not
    sent what is switched off."""
    plain = SamplingParams(sampling.max_new_tokens)
    given = {name: getattr(sampling, name) for name in names}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value != getattr(plain, name)
    }


class PutTensors:
    """What an update has put so far, held against the tensors of the model.

    Args:
        shapes: of each tensor that must be put, by its Hugging Face name.
        optional: of those that may be put too.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        optional: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.names: set[str] = set()
        self._shapes = shapes
        self._optional = optional or {}

    def fault(self, name: str, shape: tuple[int, ...]) -> str:
        """Why a tensor cannot be put; empty where it can, and counts as put."""
        wanted = self._shapes.get(name, self._optional.get(name))
        if wanted is None:
            return (
                f"the model has no tensor {name!r}; its names are like "
                f"{next(iter(self._shapes), '')!r}"
            )
        if shape != wanted:
            return (
                f"{name} must have shape {wanted}, got {shape}; send the whole tensor under "
                "its Hugging Face name"
            )
        self.names.add(name)
        return ""

    def missing(self) -> str:
        """What is missing before an update can be committed; empty where all is there."""
        left = [name for name in self._shapes if name not in self.names]
        if not left:
            return ""
        return (
            f"{len(left)} of {len(self._shapes)} tensors were not put, first {left[0]!r}; put "
            "every tensor before commit"
        )


def require_new(request: GenerateRequest, in_flight: Container[str]) -> None:
    """Raises an EngineError where another request in flight has the same id."""
    if request.request_id in in_flight:
        raise EngineError(
            f"request_id {request.request_id!r} is already in flight; ids must be unique",
            retryable=False,
        )


def first_outside(ids: npt.NDArray[Any], vocab_size: int) -> int | None:
    """The first of ``ids`` ``[n]`` that is no id of the vocabulary."""
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    return int(outside[0]) if outside.size else None
