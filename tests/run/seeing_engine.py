"""An engine that is shown images and says whatever its script says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from agentrl.engines import EnginePlace, EngineSpec, EngineTraits, HostedEngine, WeightSender
from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import EpisodeView
from agentrl.types import GenerateRequest


def say(request: GenerateRequest) -> list[int]:
    """Up to eight tokens by the request's seed, and its stop token."""
    assert request.images
    rng = np.random.default_rng(request.seed)
    said = rng.integers(100, 200, rng.integers(2, 8)).tolist()
    return [*said, *list(request.sampling.stop_token_ids)[:1]]


class SeeingEngine(ScriptedEngine):
    """Its tokens follow from no weights, of which it keeps the checksums alone."""

    def score(self, token_ids: Sequence[int]) -> Mapping[str, npt.NDArray[np.float32]]:
        return {}


class SeeingEngineSpec(EngineSpec):
    """Has no settings."""

    section: ClassVar[str] = "seeing"

    def traits(self) -> EngineTraits:
        return EngineTraits(images=True)

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> HostedEngine:
        return SeeingEngine(say, vocab_size=832)


def short(episode: EpisodeView) -> float:
    return -float(len(episode.turns[-1].text))
