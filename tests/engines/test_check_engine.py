"""The check of an engine's contract: a sound engine passes, and each broken rule is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from agentrl.engines import EnginePlace, EngineSpec, EngineTraits, HostedEngine, WeightSender
from agentrl.engines.checks import check_engine
from agentrl.engines.scripted import ScriptedEngine
from agentrl.engines.torch import TorchEngineSpec
from agentrl.errors import ConfigError
from agentrl.types import Completion, GenerateRequest, Segment, TokenUsage, alternatives_side
from tests.engines.own_engine import OwnEngineSpec
from tests.engines.tiny import VOCAB, TinyModel

PLACE = EnginePlace("scripted", context_tokens=64)


class Sound(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(lambda _: [5, 6, 7, 8], vocab_size=VOCAB, context_tokens=64)


class ScriptedSpec(EngineSpec):
    """A specification of an engine of this module."""

    section: ClassVar[str] = "scripted_own"
    kind: str

    def traits(self) -> EngineTraits:
        return EngineTraits()

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


class TakesAnyId(Sound):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await super().generate(replace(request, token_ids=np.array([0, 1, 2], np.int32)))


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
        ids = np.array(self.ids, np.int32)[:, :asked]
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
        ScriptedEngine.__init__(self, lambda _: [5], vocab_size=VOCAB, context_tokens=32)


BROKEN: list[tuple[type[Sound], str]] = [
    (WithoutScore, "build() returns an engine with both faces: it has no score()"),
    (ForgetsTheVersion, "a completion carries the version served: {9}, and 0 is served"),
    (CountsWrongly, "a completion accounts for every token: 3 ids went in and 4 came out"),
    (TakesAnyId, "ids outside the vocabulary are refused, not to be tried again: no EngineError"),
    (AnswersInAPause, "a request was answered in the pause"),
    (UpdatesWhileServing, "begin_update() needs a paused engine: no EngineError was raised"),
    (ScoresTooFew, "score() gives a logprob for every token but the first"),
    (NeverCloses, "a closed engine says so, and answers nothing: after close() it is"),
    (AlternativesUnasked, "sampled one: they came, and the request asked for none"),
    (AlternativesTooFew, "sampled one: (4, 2) came in place of (4, 3)"),
    (AlternativesRising, "sampled one: their logprobs do not fall"),
    (AlternativesOfANeighbour, "own logprob among them differs by 0.5 too much"),
    (AlternativesTwice, "a token is its own alternative twice"),
    (AlternativesWithoutTheLikeliest, "not among them is likelier than the last by 2"),
    (OfAnotherContext, "info() and layout() are those of the place"),
]


@pytest.mark.parametrize(("kind", "said"), BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])
def test_each_broken_rule_is_named(kind: type[Sound], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine(ScriptedSpec(kind=kind.__name__), PLACE)
    assert said in str(caught.value)


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


def test_a_sound_scripted_engine_passes() -> None:
    check_engine(ScriptedSpec(kind="Sound"), PLACE)
    check_engine(ScriptedSpec(kind="GivesAlternatives"), PLACE)


@pytest.mark.parametrize("make", [TorchEngineSpec, lambda: OwnEngineSpec(greeting="hello")])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_sound_engine_passes_with_a_whole_update(
    make: Callable[[], EngineSpec], deterministic: bool, tiny: TinyModel, tmp_path: Path
) -> None:
    tiny.module.save_pretrained(tmp_path / "model")
    place = EnginePlace(
        str(tmp_path / "model"),
        str(tmp_path / "own"),
        context_tokens=64,
        max_running=2,
        deterministic=deterministic,
    )
    tensors = [item for item in tiny.tensors.items() if item[0] != "lm_head.weight"]
    check_engine(make(), place, tensors=tensors)
