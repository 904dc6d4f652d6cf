"""A vLLM server that lacks something, or serves something else, is refused by what it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.servers.http_client import ServerLostError
from agentrl.engines.vllm.client import _ROUTES
from agentrl.errors import EngineError, MachineError
from tests.engines.servers.broken_server import BrokenServer, broken_server, says
from tests.engines.servers.vllm_answers import position, vllm_client

CONFIG = {
    "vocab_size": 3,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


@pytest.fixture(scope="module")
def shared() -> Iterator[BrokenServer]:
    with broken_server({}) as found:
        yield found


@pytest.fixture
def server(shared: BrokenServer, model: str) -> BrokenServer:
    """Has each route, and answers the first questions as a server of the model does."""
    config = {
        "model_config": {"model": model, "dtype": "torch.float32", "max_model_len": 64}
    }
    routes = dict.fromkeys(_ROUTES, says(b"{}"))
    routes["/version"] = says(b'{"version": "0.32.0+cpu"}')
    routes["/server_info?config_format=json"] = says(
        json.dumps({"vllm_config": config}).encode()
    )
    shared.behaviours = routes
    shared.calls.clear()
    return shared


def change(server: BrokenServer, **served: Any) -> None:
    """Another account of its model."""
    route = "/server_info?config_format=json"
    server.behaviours = {
        **server.behaviours,
        route: says(json.dumps({"vllm_config": {"model_config": served}}).encode()),
    }


async def probed(
    server: BrokenServer, model: str, seeds: dict[str, int] | None = None
) -> None:
    client = vllm_client(server.url, model, seeds)
    try:
        await client.probe()
        await client.check_model()
    finally:
        await client.close()


async def test_each_route_that_is_needed_is_missed(
    server: BrokenServer, model: str
) -> None:
    routes = server.behaviours
    for route in _ROUTES:
        server.behaviours = {name: own for name, own in routes.items() if name != route}
        with pytest.raises(EngineError, match=rf"no route {route}, which .*DEV_MODE=1"):
            await probed(server, model)


async def test_a_version_below_the_least_one_is_refused(
    server: BrokenServer, model: str
) -> None:
    server.behaviours = {**server.behaviours, "/version": says(b'{"version": "0.9.1"}')}
    with pytest.raises(
        MachineError, match=r"server 0 is vLLM 0\.9\.1; agentrl needs at least 0"
    ):
        await probed(server, model)


@pytest.mark.parametrize(
    ("served", "said"),
    [
        (
            {"dtype": "torch.bfloat16"},
            "computes in bfloat16, .* start it with --dtype float32",
        ),
        ({"max_model_len": 32}, "takes 32 tokens, .* start it with --max-model-len 64"),
    ],
)
async def test_another_dtype_or_context_is_refused(
    server: BrokenServer, model: str, served: dict[str, Any], said: str
) -> None:
    change(
        server, **{"model": model, "dtype": "torch.float32", "max_model_len": 64} | served
    )
    with pytest.raises(EngineError, match=said) as caught:
        await probed(server, model)
    assert not caught.value.retryable


async def test_another_vocabulary_is_refused(
    server: BrokenServer, model: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 4}))
    change(server, model=str(other), dtype="torch.float32", max_model_len=64)
    with pytest.raises(
        EngineError, match=r"serves another model: vocab_size is 4, .* has 3;"
    ):
        await probed(server, model)


@pytest.mark.parametrize("seed", [0, 7])
async def test_servers_of_one_seed_are_refused(
    server: BrokenServer, model: str, seed: int
) -> None:
    change(server, model=model, dtype="torch.float32", max_model_len=64, seed=seed)
    with pytest.raises(
        EngineError, match=rf"--seed {seed} as http://other does, .*of its own$"
    ):
        await probed(server, model, {server.url: seed, "http://other": seed})
    # with another one it is asked the next question
    with pytest.raises(ServerLostError):
        await probed(server, model, {server.url: seed, "http://other": seed + 1})


async def test_logprobs_of_another_meaning_are_refused(
    server: BrokenServer, model: str
) -> None:
    content = [position((0, -0.5), (1, -1.5), (2, -3.0))]
    answer = {"choices": [{"logprobs": {"content": content}}]}
    server.behaviours = {
        **server.behaviours,
        "/inference/v1/generate": says(json.dumps(answer).encode()),
    }
    with pytest.raises(EngineError, match="logprobs of another meaning") as caught:
        await probed(server, model)
    assert not caught.value.retryable


async def test_memory_is_not_released_under_a_request(
    server: BrokenServer, model: str
) -> None:
    client = vllm_client(server.url, model)
    client._held = 1
    try:
        with pytest.raises(
            EngineError, match=r"when nothing runs, 1 requests do; set rollout\.pa"
        ):
            await client.release(("weights",), running=0)
    finally:
        await client.close()
    assert server.calls == []


async def test_a_checker_that_makes_no_checksums_is_named(
    server: BrokenServer, model: str
) -> None:
    server.behaviours["/weight_checker"] = says(b'{"message": "no such action"}')
    client = vllm_client(server.url, model)
    try:
        with pytest.raises(ServerLostError, match="made no checksums: no such action"):
            await client.digests()
    finally:
        await client.close()
