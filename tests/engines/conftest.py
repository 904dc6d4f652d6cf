"""A tiny random model, and engines that are closed when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from tests.engines.tiny import TinyModel, make_model


@pytest.fixture(scope="session")
def tiny() -> TinyModel:
    return make_model()


@pytest.fixture
def start() -> Iterator[Callable[..., TorchEngine]]:
    """Builds TorchEngines and closes them at the end of the test."""
    engines: list[TorchEngine] = []

    def build(model: TinyModel, **settings: Any) -> TorchEngine:
        place = EnginePlace(
            **{"model": "tiny", "context_tokens": 128, "max_running": 8} | settings
        )
        engines.append(TorchEngine(place, config=model.config, state_dict=model.tensors))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()
