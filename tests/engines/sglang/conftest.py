"""One real SGLang server for all tests that can share one, and a tiny Qwen2 for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from agentrl.engines import WeightSender
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.engines.sglang.environment import SGLANG
from agentrl.engines.sglang.launch import SGLangServers
from agentrl.training.models.tiny import build_tiny_model
from tests.engines.servers.broken_server import (
    Behaviour,
    BrokenServer,
    broken_server,
    passes_on,
)
from tests.engines.sglang.models import CONTEXT, DTYPE, HuggingFace
from tests.kit.server_programs import running, split
from tests.kit.waiting import DEADLINE_S
from tests.run.tiny_task import demonstrations

CODE_EXAMPLE = Path(__file__).parents[3] / "examples" / "code" / "config.yaml"


@pytest.fixture(scope="session")
def python() -> str:
    """See ``interpreter``."""
    return interpreter()


def interpreter() -> str:
    """That of the servers' environment: ``AGENTRL_SGLANG_PYTHON``, or where `agentrl install` puts
    it.
    """
    path = Path(os.environ.get("AGENTRL_SGLANG_PYTHON") or SGLANG.python())
    if not path.is_file():
        pytest.skip(
            f"no environment for SGLang servers at {path}: run `agentrl install sglang`"
        )
    return str(path)


def make_model(folder: Path, *, seed: int, heads: int = 4, context: int = CONTEXT) -> Path:
    """A Qwen2 with random weights, biases included, and the tokenizer of the tiny task."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    build_tiny_model(
        folder,
        demonstrations(0),
        num_demonstrations=40,
        vocab_size=300,
        hidden=32,
        layers=1,
        ff=48,
    )
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        intermediate_size=128,
        tie_word_embeddings=True,
        max_position_embeddings=context,
        initializer_range=0.08,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # gains of 1 and biases of 0 would hide a missing one
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def warming_up(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[bytes], Path] | None]:
    """The warm-up of the code example, beside the other tests: it takes minutes, and one core."""
    if not any(
        "warmed_up" in getattr(item, "fixturenames", ()) for item in request.session.items
    ):
        yield None
        return
    folder = tmp_path_factory.mktemp("warm-up")
    own = (
        "run.seed=1",
        "stages.rl.steps=1",
        "stages.rl.train.batch_prompts=1",
        "stages.rl.eval.sets={}",
    )
    command = [
        "nice",
        "-n",
        "10",
        sys.executable,
        "-m",
        "agentrl",
        "train",
        str(CODE_EXAMPLE),
        *own,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"run.dir={folder / 'run'}", "placement.mode=inline"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, folder
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def warmed_up(warming_up: tuple[subprocess.Popen[bytes], Path]) -> Path:
    """The model that GRPO starts from in the code example."""
    process, folder = warming_up
    assert process.wait(DEADLINE_S) == 0, (folder / "log").read_text()[-2000:]
    return folder / "run" / "models" / "warmup"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("qwen2"), seed=3)


@pytest.fixture
def reference(model: Path) -> HuggingFace:
    """The same model in transformers, to be changed at will."""
    return HuggingFace(model)


@pytest.fixture(scope="session")
def server(
    python: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server that any test may own for a while."""
    with running_server(python, model, tmp_path_factory.mktemp("server")) as url:
        yield url


@contextmanager
def running_server(
    python: str, model: Path, folder: Path, **settings: Any
) -> Iterator[str]:
    """A server with these settings beside the usual ones; its address."""
    usual = {
        "context_tokens": CONTEXT,
        "dtype": DTYPE,
        "stop_strings": True,
        "kv_tokens": 8192,
    }
    own, place = split(
        SGLangEngineSpec, {"model": str(model), "folder": str(folder), **usual, **settings}
    )
    servers = SGLangServers(place, SGLangEngineSpec(python=python, **own))
    with running(servers, model, folder) as url:
        yield url


Neighbour: TypeAlias = Callable[..., BrokenServer]


@pytest.fixture
def neighbour(server: str) -> Iterator[Neighbour]:
    """Starts a server that does what the real one does, but something else on one route, where
    requests come.
    """
    with ExitStack() as stack:

        def start(behaviour: Behaviour, route: str = "/generate") -> BrokenServer:
            routes = defaultdict(lambda: passes_on(server), {route: behaviour})
            return stack.enter_context(broken_server(routes))

        yield start


@pytest.fixture
def build(model: Path, tmp_path: Path) -> Iterator[Callable[..., SGLangEngine]]:
    """Builds engines and closes them at the end of the test."""
    engines: list[SGLangEngine] = []

    def make(
        *urls: str, sender: Callable[[], WeightSender] | None = None, **settings: Any
    ) -> SGLangEngine:
        given = {
            "model": str(model),
            "folder": str(tmp_path / "engine"),
            "urls": urls,
            "stop_strings": True,
            "context_tokens": CONTEXT,
            "dtype": DTYPE,
        }
        own, place = split(SGLangEngineSpec, {**given, **settings})
        engines.append(
            SGLangEngine(
                place, SGLangEngineSpec(**own), None if sender is None else sender()
            )
        )
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
