"""The check of an engine's contract: a sound engine passes, and each broken rule is named."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from agentrl.engines import (
    EngineHealth,
    EnginePlace,
    EngineSpec,
    EngineTraits,
    HostedEngine,
    WeightSender,
)
from agentrl.engines.conformance import check_engine
from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.types import (
    Completion,
    GenerateRequest,
    Image,
    MediaSpan,
    SamplingParams,
    Segment,
    TokenUsage,
    alternatives_side,
)
from tests.engines.tiny import VOCAB
from tests.kit.marks import wide_but

PLACE = EnginePlace("scripted", context_tokens=64)


TENSORS = [("one", torch.arange(2.0)), ("two", torch.arange(3.0))]


class Sound(ScriptedEngine):
    """Answers four tokens at once, and a long request once it is drained or has new weights."""

    def __init__(self, *script: int) -> None:
        super().__init__(
            lambda _: script or [5, 6, 7, 8],
            vocab_size=VOCAB,
            context_tokens=64,
            latency=self.wait,
            shapes={name: tuple(tensor.shape) for name, tensor in TENSORS},
        )

    async def wait(self, request: GenerateRequest) -> None:
        version = self.info().policy_version
        while request.sampling.max_new_tokens > 4 and self._life.paused != "drain":
            if self.info().policy_version != version:
                return
            await asyncio.sleep(0.001)

    async def altered(self, request: GenerateRequest, **changes: Any) -> Completion:
        """The answer to another request, under the name of this one."""
        return await ScriptedEngine.generate(self, replace(request, **changes))


class ScriptedSpec(EngineSpec):
    """A specification of an engine of this module."""

    section: ClassVar[str] = "scripted_own"
    kind: str

    def traits(self) -> EngineTraits:
        return EngineTraits(images=True)

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> HostedEngine:
        engine: HostedEngine = globals()[self.kind]()
        return engine


class WithoutScore(Sound):
    score = None  # type: ignore[assignment]


class ForgetsTheVersion(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        answer = await super().generate(request)
        return replace(
            answer, segments=tuple(replace(s, policy_version=9) for s in answer.segments)
        )


class CountsWrongly(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        return replace(await super().generate(request), usage=TokenUsage(1, 4, 6))


class AnswersInAPause(Sound):
    def pause(self, mode: Any) -> None:
        self._life.paused = mode
        self._life.clock.stop()

    async def _serving(self) -> None:
        if self._life.closed:
            raise self._life.error()


class UpdatesWhileServing(Sound):
    def begin_update(self, version: int) -> Any:
        self._life.paused = self._life.paused or "drain"
        return super().begin_update(version)


class ScoresTooFew(Sound):
    def score(self, token_ids: Any) -> Any:
        return {"one": super().score(token_ids)["scripted"][:-1]}


class NeverCloses(Sound):
    def close(self) -> None:
        """Nothing."""


class GivesAlternatives(Sound):
    """Those of a made-up distribution in which it is certain of what it says."""

    ids = ([5, 1, 2], [6, 1, 2], [7, 1, 2], [8, 1, 2])
    logprobs = (-1.0, -2.0, -3.0)

    async def generate(self, request: GenerateRequest) -> Completion:
        answer = await super().generate(request)
        return replace(answer, segments=tuple(map(self.changed, answer.segments)))

    def changed(self, segment: Segment) -> Segment:
        asked = self.requests[-1].num_alternatives
        ids = np.array(self.ids, np.int32)[: len(segment), :asked]
        logprobs = np.tile(np.array(self.logprobs, np.float32)[:asked], (len(ids), 1))
        return replace(segment, side=alternatives_side(ids, logprobs))


class AlternativesUnasked(GivesAlternatives):
    def changed(self, segment: Segment) -> Segment:
        self.requests[-1] = replace(self.requests[-1], num_alternatives=3)
        return super().changed(segment)


class AlternativesTooFew(GivesAlternatives):
    logprobs = (-1.0, -2.0)
    ids = ([5, 1], [6, 1], [7, 1], [8, 1])


class AlternativesRising(GivesAlternatives):
    logprobs = (-1.0, -3.0, -2.0)


class AlternativesOfANeighbour(GivesAlternatives):
    logprobs = (-0.5, -1.5, -2.0)


class AlternativesTwice(GivesAlternatives):
    ids = ([5, 5, 2], [6, 1, 2], [7, 1, 2], [8, 1, 2])


class AlternativesWithoutTheLikeliest(GivesAlternatives):
    ids = ([1, 2, 3],) * 4
    logprobs = (-1.5, -2.0, -3.0)


class OfAnotherContext(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.context_tokens = 32


class OfAnotherRequest(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        return replace(await super().generate(request), request_id="another")


class CachesAll(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        answer = await super().generate(request)
        return replace(answer, cached_tokens=answer.usage.prompt_tokens)


class KeepsTooMuch(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        answer = await super().generate(request)
        return replace(answer, usage=replace(answer.usage, kv_tokens=99))


class TellsOthers(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        if request.on_tokens:
            request.on_tokens(np.array([9], np.int32), np.array([-1], np.float32))
        return await super().generate(request)


class EndsEarly(Sound):
    def __init__(self) -> None:
        super().__init__(5, 6, 7)


class GoesOverStops(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.altered(
            request, sampling=replace(request.sampling, stop_token_ids=())
        )


class KeepsSessions(Sound):
    async def release(self, session_id: str) -> None:
        """Nothing."""


class TakesAnything(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        short = SamplingParams(min(4, request.sampling.max_new_tokens))
        ids = np.array([0, 1, 2], np.int32)
        none: Any = {"media": (), "images": (), "num_alternatives": 0, "min_version": 0}
        return await self.altered(request, token_ids=ids, sampling=short, **none)


class RefusesForGood(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        try:
            return await super().generate(request)
        except EngineError as error:
            raise EngineError(str(error), retryable=False) from error


class RefusesForNow(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        try:
            return await super().generate(request)
        except EngineError as error:
            raise EngineError(str(error)) from error


class NeverAborts(Sound):
    async def abort(self, request_ids: Sequence[str]) -> None:
        """Nothing."""


class AbortsWhatRuns(Sound):
    async def abort(self, request_ids: Sequence[str]) -> None:
        await super().abort([one for one in request_ids if one in self._running])


class CallsItAStop(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        answer = await super().generate(request)
        stopped = answer.finish_reason == "abort"
        return replace(answer, finish_reason="stop") if stopped else answer


class CountsWhoWaited(Sound):
    most = 0

    def health(self) -> EngineHealth:
        now = super().health()
        self.most = max(self.most, now.waiting)
        return replace(now, waiting=self.most)


class GoesOnAlone(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await asyncio.shield(super().generate(request))


class TakesTwins(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        name = request.request_id
        own = f"{name}#{len(self.requests)}"
        return replace(await self.altered(request, request_id=own), request_id=name)

    async def abort(self, request_ids: Sequence[str]) -> None:
        await super().abort(
            [one for one in self._waits if one.partition("#")[0] in request_ids]
        )


class NeverTooLate(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.altered(request, deadline_s=None)


class TooLateInAPause(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        try:
            async with asyncio.timeout(request.deadline_s):
                return await self.altered(request, deadline_s=None)
        except TimeoutError:
            raise EngineError("too late") from None


class OfOneLoop(Sound):
    loop: Any = None

    async def generate(self, request: GenerateRequest) -> Completion:
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("bound to a different event loop")
        return await super().generate(request)


class OverAtOnce(Sound):
    async def wait(self, request: GenerateRequest) -> None:
        """Nothing."""


class DrainsNothing(Sound):
    def pause(self, mode: Any) -> None:
        super().pause("retract")


class SleepsWhileItRuns(Sound):
    def sleep(self, tags: Any) -> None:
        self._life.sleep(tags)


class NeverSleeps(Sound):
    def sleep(self, tags: Any) -> None:
        if self._running:
            super().sleep(tags)


class WakesAsAnother(Sound):
    def wake(self, tags: Any) -> None:
        self.logprob = -2.0
        super().wake(tags)


class ClosesInSilence(Sound):
    def close(self) -> None:
        self._life.close("it was closed")


class MovesWhereGivenUp(Sound):
    def end_update(self, version: int | None, checksums: Any) -> None:
        super().end_update(1 if version is None else version, checksums)


class ServesTheVersionBefore(Sound):
    def end_update(self, version: int | None, checksums: Any) -> None:
        super().end_update(version and version - 1, checksums)


class SumsNothing(Sound):
    def checksum(self) -> Any:
        return dict.fromkeys(super().checksum(), 0)


class ReadsZeros(Sound):
    def read(self, name: str) -> Any:
        return torch.zeros_like(dict(TENSORS)[name])


class OfTheVersionAtFirst(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        version = self.info().policy_version
        answer = await super().generate(request)
        own = tuple(replace(part, policy_version=version) for part in answer.segments)
        return replace(answer, segments=own)


class ForgetsWhatItTold(Sound):
    """Says of all tokens that they are of the last version, also of one told before."""

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.on_tokens:
            request.on_tokens(np.array([5], np.int32), np.array([-1], np.float32))
        return await super().generate(request)


class TurnsVersionsAround(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        answer = await super().generate(request)
        if request.sampling.max_new_tokens == 4 or not answer.segments:
            return answer
        (whole,) = answer.segments
        half = Segment(
            whole.kind, whole.token_ids[:2], whole.logprobs[:2], whole.policy_version
        )
        before = replace(half, policy_version=half.policy_version - 1)
        return replace(answer, segments=(half, before))


class TakesTornWeights(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.shapes = None


REFUSED = "is refused, not to be tried again: no EngineError was raised"
LATE = "it did not happen in 0.3 s"
BROKEN: list[tuple[type[Sound], str]] = [
    (WithoutScore, "build() returns an engine with both faces: it has no score()"),
    (ForgetsTheVersion, "a completion carries the version served: versions: {9}, not {0}"),
    (
        CountsWrongly,
        "accounts for every token, turn by turn: id, prompt tokens, completion tokens",
    ),
    (OfAnotherRequest, "accounts for every token, turn by turn: id, prompt tokens"),
    (CachesAll, "accounts for every token, turn by turn: cached_tokens is 3"),
    (KeepsTooMuch, "accounts for every token, turn by turn: kv_tokens is 99"),
    (TellsOthers, "are those of the completion: tokens told: [9], not [5]"),
    (EndsEarly, "with reason length: reason and tokens: ('stop', 3), not ('length', 4)"),
    (GoesOverStops, "and is kept: reason and tokens: ('length', 4), not ('stop', 1)"),
    (KeepsSessions, f"release() frees what is kept for a session: {LATE}"),
    (TakesAnything, f"an id above the vocabulary {REFUSED}"),
    (TakesAnything, f"a negative id {REFUSED}"),
    (TakesAnything, f"a request without ids {REFUSED}"),
    (TakesAnything, f"a prompt over the context {REFUSED}"),
    (TakesAnything, f"a completion over it {REFUSED}"),
    (TakesAnything, f"more alternatives than tokens {REFUSED}"),
    (TakesAnything, f"an image that cannot be {REFUSED}"),
    (TakesAnything, f"a stop string {REFUSED}"),
    (
        TakesAnything,
        "a version above the served one is refused, for elsewhere: no EngineError",
    ),
    (
        RefusesForGood,
        "a version above the served one is refused, for elsewhere: retryable is F",
    ),
    (RefusesForNow, "a negative id is refused, not to be tried again: retryable is True"),
    (NeverAborts, f"abort() ends a request with what it has: {LATE}"),
    (CallsItAStop, "abort() ends a request with what it has: reason: stop, not abort"),
    (AbortsWhatRuns, f"abort() ends a request that waits in a pause: {LATE}"),
    (CountsWhoWaited, f"abort() ends a request that waits in a pause: {LATE}"),
    (GoesOnAlone, f"a cancelled caller leaves nothing running: {LATE}"),
    (
        TakesTwins,
        "of an id that is in flight is refused, for good: no EngineError was raised",
    ),
    (NeverTooLate, f"that spent its deadline fails, and may be tried again: {LATE}"),
    (TooLateInAPause, "no deadline passes in a pause: a request was answered in the pause"),
    (
        OfOneLoop,
        "any number of event loops: RuntimeError('bound to a different event loop')",
    ),
    (
        OverAtOnce,
        "abort() ends a request with what it has: it ended before anything could happen",
    ),
    (AnswersInAPause, "a request was answered in the pause"),
    (DrainsNothing, f"pause('drain') lets what runs end: {LATE}"),
    (
        UpdatesWhileServing,
        "begin_update() needs a paused engine: no EngineError was raised",
    ),
    (SleepsWhileItRuns, "sleep() is refused while requests run: no EngineError was raised"),
    (NeverSleeps, "says what it said before: health().state: paused, not asleep"),
    (
        WakesAsAnother,
        "an engine that slept says what it said before: scripted gave [-2. -2.]",
    ),
    (ScoresTooFew, "score() gives a logprob for every token but the first"),
    (NeverCloses, "fails what it has and what comes: health().state: serving, not closed"),
    (
        ClosesInSilence,
        f"a closed engine says so, and fails what it has and what comes: {LATE}",
    ),
    (AlternativesUnasked, "sampled one: they came, and the request asked for none"),
    (AlternativesTooFew, "sampled one: (4, 2) came in place of (4, 3)"),
    (AlternativesRising, "sampled one: their logprobs do not fall"),
    (AlternativesOfANeighbour, "own logprob among them differs by 0.5 too much"),
    (AlternativesTwice, "a token is its own alternative twice"),
    (AlternativesWithoutTheLikeliest, "not among them is likelier than the last by 2"),
    (OfAnotherContext, "info() and layout() are those of the place"),
    (
        MovesWhereGivenUp,
        "given up before a tensor changes nothing: policy_version: 1, not 0",
    ),
    (
        ServesTheVersionBefore,
        "a committed update is served under its version: versions: {0}",
    ),
    (
        SumsNothing,
        "checksum() is of the tensors that were put, in the served dtype: one: 0, not",
    ),
    (ReadsZeros, "read() gives the tensors that were put: one is another one"),
    (OfTheVersionAtFirst, "tells the version of each token: none came after it"),
    (
        ForgetsWhatItTold,
        "the version of each token: 1 tokens came before it, 0 are said to",
    ),
    (
        TurnsVersionsAround,
        "the version of each token: versions: [2, 2, 1, 1], not [1, 1, 2, 2]",
    ),
    (
        TakesTornWeights,
        "an incomplete update leaves a corrupt engine: no EngineError was raised",
    ),
]


KINDS = [*dict.fromkeys(kind for kind, _ in BROKEN)]


@pytest.mark.parametrize("kind", wide_but(KINDS[::6], KINDS))
def test_each_broken_rule_is_named(kind: type[Sound]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine(
            ScriptedSpec(kind=kind.__name__), PLACE, tensors=TENSORS, patience_s=0.3
        )
    for said in (said for one, said in BROKEN if one is kind):
        assert said in str(caught.value)


class Sees(Sound):
    """Says other logprobs of another image."""

    async def generate(self, request: GenerateRequest) -> Completion:
        answer = await super().generate(request)
        seen = -1.0 - len(request.images and request.images[0].bytes())
        own = (
            replace(one, logprobs=np.full_like(one.logprobs, seen))
            for one in answer.segments
        )
        return replace(answer, segments=tuple(own)) if request.images else answer


def test_an_engine_that_does_not_look_at_images_is_named() -> None:
    pictures = []
    for data in (b"a", b"bc"):
        image = Image(hashlib.sha256(data).hexdigest(), "image/png", 1, 1, len(data), data)
        media = (MediaSpan(1, 1, image.sha256, "image"),)
        ids = np.array([0, 1, 2], np.int32)
        sampling = SamplingParams(4)
        pictures.append(
            GenerateRequest(
                "p", image.sha256, ids, sampling, 0, media=media, images=(image,)
            )
        )
    check_engine(ScriptedSpec(kind="Sees"), PLACE, pictures=pictures)
    with pytest.raises(
        ConfigError, match=r"another image gives other logprobs: \[-1\.\] twice"
    ):
        check_engine(ScriptedSpec(kind="Sound"), PLACE, pictures=pictures)


class Unpicklable(ScriptedSpec):
    def __reduce__(self) -> Any:
        raise TypeError("a socket is open")


class NoTraits(ScriptedSpec):
    def traits(self) -> EngineTraits:
        return None  # type: ignore[return-value]


class NoSection(ScriptedSpec):
    section: ClassVar[str] = ""


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Unpicklable, "a specification is picklable: TypeError('a socket is open')"),
        (NoTraits, "traits() tells the engine's abilities: got None"),
        (NoSection, "a specification names its section: section is ''"),
    ],
)
def test_a_broken_specification_is_named(spec: type[ScriptedSpec], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine(spec(kind="Sound"), PLACE)
    assert said in str(caught.value)
