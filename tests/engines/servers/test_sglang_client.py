"""What a broken server does has a name, and what would break a sound one is not sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl.engines.servers.client import EncodedTensors, NewVersion
from agentrl.engines.servers.http_client import RefusedError, ServerLostError
from agentrl.engines.servers.server import reserved_port, server_url
from agentrl.engines.sglang.client import SGLangClient
from agentrl.errors import EngineError, MachineError
from tests.engines.servers.broken_server import (
    Behaviour,
    BrokenServer,
    breaks_off,
    broken_server,
    keeps_silent,
    says,
)
from tests.engines.servers.sglang_answers import (
    answer_without_spans,
    request,
    sglang_client,
)

SUCCESS = says(b'{"success": true, "message": "done"}')
INFO = says(b'{"version": "0.5.23", "tp_size": 2}')


@asynccontextmanager
async def client_of(
    call_timeout_s: float = 60.0, model: str = "model", **routes: Behaviour
) -> AsyncIterator[tuple[SGLangClient, BrokenServer]]:
    with broken_server(
        {f"/{route}": behaviour for route, behaviour in routes.items()}
    ) as server:
        client = sglang_client(server.url, call_timeout_s=call_timeout_s, model=model)
        try:
            yield client, server
        finally:
            await client.close()


async def test_an_error_of_the_server_is_named() -> None:
    async with client_of(generate=says(b'{"error": {"message": "boom"}}', 500)) as (
        client,
        _,
    ):
        with pytest.raises(
            ServerLostError, match="server 0 answered /generate with HTTP 500: boom"
        ):
            await client.generate(request(), "r")


async def test_a_refusal_is_named_and_not_tried_again() -> None:
    async with client_of(generate=says(b'{"error": {"message": "too long"}}', 400)) as (
        client,
        _,
    ):
        with pytest.raises(
            RefusedError, match="refused /generate with HTTP 400: too long"
        ) as caught:
            await client.generate(request(), "r")
    assert not caught.value.retryable


async def test_half_an_answer_is_named() -> None:
    async with client_of(generate=breaks_off) as (client, _):
        with pytest.raises(ServerLostError, match="broke off in its answer to /generate"):
            await client.generate(request(), "r")


async def test_an_answer_that_is_no_json_is_named() -> None:
    async with client_of(generate=says(b"<html>")) as (client, _):
        with pytest.raises(ServerLostError, match="6 bytes that are no JSON"):
            await client.generate(request(), "r")


async def test_an_answer_that_is_no_object_is_named() -> None:
    async with client_of(generate=says(b"[1]")) as (client, _):
        with pytest.raises(ServerLostError, match="with a list, not an object"):
            await client.generate(request(), "r")


async def test_no_answer_is_named_by_its_deadline() -> None:
    async with client_of(0.5, server_info=keeps_silent) as (client, _):
        with pytest.raises(
            ServerLostError, match=r"did not answer /server_info within 0\.5 s"
        ):
            await client.probe()


async def test_a_server_that_is_not_there_is_named_with_its_address() -> None:
    with reserved_port() as port:
        url = server_url(port)
        client = sglang_client(url, call_timeout_s=0.5)
        told = f"server 0 at {url} cannot be reached for /generate"
        with pytest.raises(ServerLostError, match=told):
            await client.generate(request(), "r")
    await client.close()


async def test_a_server_that_is_not_there_is_not_healthy() -> None:
    with reserved_port() as port:
        client = sglang_client(server_url(port), call_timeout_s=0.5)
        assert not await client.healthy(0.5)
    await client.close()


@pytest.mark.parametrize("version", ["0.5.17", "0.4.0", "main"])
async def test_a_server_below_the_least_version_is_refused_by_name(version: str) -> None:
    info = says(json.dumps({"version": version}).encode())
    async with client_of(server_info=info) as (client, _):
        with pytest.raises(
            MachineError,
            match=rf"server 0 is SGLang {version}; agentrl needs at least 0\.5\.18: install a "
            r"newer",
        ):
            await client.probe()


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.6.0rc1", "1.0"])
async def test_a_newer_server_is_asked_what_it_can_do(version: str) -> None:
    info = says(json.dumps({"version": version, "tp_size": 2}).encode())
    async with client_of(server_info=info, begin_weight_update=SUCCESS) as (client, server):
        await client.probe()
    assert client.brackets_updates
    assert (client.num_ranks, client.reports_versions) == (2, True)
    assert server.calls == ["/server_info"]  # a route is asked for without calling it


async def test_an_answer_without_versions_makes_later_pauses_drain() -> None:
    plain = answer_without_spans()
    async with client_of(server_info=INFO, generate=says(json.dumps(plain).encode())) as (
        client,
        _,
    ):
        await client.probe()
        assert client.reports_versions
        await client.generate(request(), "r")
        assert not client.reports_versions


async def test_a_score_is_of_the_tokens_that_were_sent() -> None:
    triples = [[None, 5, None], [-0.5, 7, None], [-1.5, 9, None]]
    scored = says(json.dumps({"meta_info": {"input_token_logprobs": triples}}).encode())
    async with client_of(generate=scored) as (client, _):
        assert (await client.score([5, 7, 9])).tolist() == [-0.5, -1.5]
        with pytest.raises(ServerLostError, match="scored other tokens than it was sent"):
            await client.score([5, 7, 8])


async def test_an_older_version_gets_no_brackets() -> None:
    async with client_of(server_info=says(b'{"version": "0.5.18"}')) as (client, server):
        await client.probe()
        await client.begin_update()
        await client.end_update()
    assert server.calls == ["/server_info"]


async def test_each_tensor_parallel_rank_gets_a_bucket() -> None:
    sent: list[bytes] = []

    def keep(handler: object) -> None:
        sent.append(handler.body)  # type: ignore[attr-defined]
        SUCCESS(handler)  # type: ignore[arg-type]

    async with client_of(server_info=INFO, update_weights_from_tensor=keep) as (client, _):
        await client.probe()
        await client.load_tensors(
            EncodedTensors(("AAAA",), None), NewVersion("own.1", flush=True)
        )
    body = json.loads(sent[0])
    assert (body["serialized_named_tensors"], body["weight_version"]) == (
        ["AAAA", "AAAA"],
        "own.1",
    )


async def test_an_update_that_did_not_succeed_says_why() -> None:
    async with client_of(
        update_weights_from_disk=says(b'{"success": false, "message": "no such file"}')
    ) as (
        client,
        _,
    ):
        with pytest.raises(
            RefusedError, match="did not do /update_weights_from_disk: no such file"
        ):
            await client.load_folder("nowhere", NewVersion("own.1", flush=True))


async def test_memory_is_not_released_while_requests_run() -> None:
    async with client_of(release_memory_occupation=SUCCESS) as (client, server):
        with pytest.raises(EngineError, match="3 requests do; call pause"):
            await client.release(["kv_cache"], running=3)
    assert server.calls == []


async def test_memory_that_was_not_released_is_not_resumed() -> None:
    async with client_of(resume_memory_occupation=SUCCESS) as (client, server):
        await client.regain(["kv_cache", "weights"])
    assert server.calls == []


async def test_what_was_released_is_resumed_once() -> None:
    async with client_of(
        release_memory_occupation=SUCCESS, resume_memory_occupation=SUCCESS
    ) as (
        client,
        server,
    ):
        await client.release(["kv_cache"], running=0)
        await client.regain(["kv_cache", "weights"])
        await client.regain(["kv_cache"])
    assert server.calls == ["/release_memory_occupation", "/resume_memory_occupation"]


async def test_nothing_is_received_in_a_group_that_was_not_joined() -> None:
    async with client_of(update_weights_from_distributed=SUCCESS) as (client, server):
        with pytest.raises(EngineError, match="did not join the group 'g'"):
            await client.receive("g", [], None)
    assert server.calls == []


@pytest.mark.parametrize("ranks", ["null", "[]", "[{}]", "[3]"])
async def test_a_checker_that_makes_no_checksums_is_named(ranks: str) -> None:
    info = says(b'{"version": "0.5.23", "device": "cpu"}')
    told = says(b'{"success": true, "message": "hm", "ranks": %s}' % ranks.encode())
    async with client_of(server_info=info, weights_checker=told) as (client, _):
        await client.probe()
        with pytest.raises(ServerLostError, match="made no checksums: hm"):
            await client.digests()


@pytest.mark.parametrize(
    ("version", "device", "told"),
    [
        ("0.5.23", "cpu", {"'w' (cpu, rank 0 of 2)": "1f", "'w' (cpu, rank 1 of 2)": "2e"}),
        (
            "0.5.23",
            "cuda",
            {"'w' (cuda, rank 0 of 2)": "1f", "'w' (cuda, rank 1 of 2)": "2e"},
        ),
        ("0.5.18", "cpu", {}),
    ],
)
async def test_digests_are_told_by_rank_where_the_version_has_them(
    version: str, device: str, told: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = str(tmp_path)
    info = says(json.dumps({"version": version, "device": device}).encode())
    ranks = [{"checksums": {"w": "1f"}}, {"checksums": {"w": "2e"}}]
    checker = says(json.dumps({"success": True, "ranks": ranks}).encode())
    routes = {"server_info": info, "weights_checker": checker}
    async with client_of(model=model, **routes) as (client, _):
        await client.probe()
        found = await client.digests()
    assert {held.name: digest for held, digest in found.items()} == told
    assert all(held.parts == ("w",) for held in found)
