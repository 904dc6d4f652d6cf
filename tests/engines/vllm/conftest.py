"""One real vLLM server for all tests that can share one, and a tiny Qwen2 for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines import EnginePlace, WeightSender
from agentrl.engines.vllm import VLLMEngine, VLLMEngineSpec
from agentrl.engines.vllm.environment import VLLM
from agentrl.engines.vllm.launch import VLLMServers
from tests.engines.sglang.conftest import make_model
from tests.engines.sglang.models import HuggingFace
from tests.kit.server_programs import running, split

CONTEXT = 8192
"""So long that a request lasts until it is paused: seconds, of which a busy server may take some to
answer."""


@pytest.fixture(scope="session")
def python() -> str:
    """See ``interpreter``."""
    return interpreter()


def interpreter() -> str:
    """That of the servers' environment: ``AGENTRL_VLLM_PYTHON``, or where `agentrl install` puts
    it.
    """
    path = Path(os.environ.get("AGENTRL_VLLM_PYTHON") or VLLM.python())
    if not path.is_file():
        pytest.skip(
            f"no environment for vLLM servers at {path}: run `agentrl install vllm`"
        )
    return str(path)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # heads of 32 numbers, the fewest that vLLM has on a CPU
    return make_model(tmp_path_factory.mktemp("qwen2"), seed=3, heads=2, context=CONTEXT)


@pytest.fixture
def reference(model: Path) -> HuggingFace:
    """The same model in transformers, to be changed at will."""
    return HuggingFace(model)


def specified(settings: dict[str, Any]) -> tuple[VLLMEngineSpec, EnginePlace]:
    """What settings beside the usual ones describe."""
    usual = {"stop_strings": True, "context_tokens": CONTEXT}
    own, place = split(VLLMEngineSpec, usual | settings)
    return VLLMEngineSpec(**own), place


@contextmanager
def running_server(
    python: str, model: Path, folder: Path, **settings: Any
) -> Iterator[str]:
    """A server with these settings beside the usual ones; its address."""
    given = {
        "model": str(model),
        "folder": str(folder),
        "kv_tokens": 3 * CONTEXT,
        "python": python,
    }
    spec, place = specified(given | settings)
    with running(VLLMServers(place, spec), model, folder) as url:
        yield url


@pytest.fixture(scope="session")
def server(
    python: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server that any test may own for a while."""
    with running_server(python, model, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def build(model: Path, tmp_path: Path) -> Iterator[Callable[..., VLLMEngine]]:
    """Builds engines and closes them at the end of the test."""
    engines: list[VLLMEngine] = []

    def make(
        *urls: str, sender: Callable[[], WeightSender] | None = None, **settings: Any
    ) -> VLLMEngine:
        given = {"model": str(model), "folder": str(tmp_path / "engine"), "urls": urls}
        spec, place = specified(given | settings)
        engines.append(VLLMEngine(place, spec, None if sender is None else sender()))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
