"""Events of a server's life: each is a log line with its fields, and a notice where a person should
know.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from agentrl.engines import EnginePlace
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.engines.sglang.model_check import model_problem as sglang_problem
from agentrl.engines.vllm import VLLMEngine, VLLMEngineSpec
from agentrl.engines.vllm.model_check import model_problem as vllm_problem
from agentrl.errors import EngineError, MachineError, WeightMismatchError
from agentrl.weight_sync import HttpSender
from tests.engines.servers.broken_server import (
    Behaviour,
    BrokenServer,
    broken_server,
    keeps_silent,
    says,
)
from tests.engines.servers.sglang_answers import VOCAB, answer_without_spans, request
from tests.kit.waiting import until_async

DONE = says(b'{"success": true, "message": "done"}')
NOTHING = says(b"{}")
TENSORS = {"model.norm.weight": np.ones(4, np.float32)}
CONFIG = {
    "vocab_size": VOCAB,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "float32",
    "tie_word_embeddings": True,
}


@pytest.fixture
def place(tmp_path: Path) -> EnginePlace:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    save_file(TENSORS, tmp_path / "model" / "model.safetensors")
    return EnginePlace(
        str(tmp_path / "model"), str(tmp_path / "servers"), context_tokens=64
    )


class FakeServer:
    """The routes of a sound SGLang 0.5.18, whose answers carry the label that it was given last."""

    def __init__(self, **routes: Behaviour) -> None:
        self.label = ""
        self.routes: dict[str, Behaviour] = {
            "server_info": says(
                json.dumps(
                    {"version": "0.5.18", "dtype": "float32", "device": "cpu"}
                ).encode()
            ),
            "update_weight_version": self._named,
            "update_weights_from_tensor": self._named,
            "generate": self._answered,
            **dict.fromkeys(
                (
                    *("model_info", "health", "abort_request", "continue_generation"),
                    *("flush_cache", "pause_generation"),
                ),
                NOTHING,
            ),
        } | routes

    def _named(self, handler: Any) -> None:
        body = json.loads(handler.body)
        self.label = body.get("new_version") or body.get("weight_version")
        DONE(handler)

    def _answered(self, handler: Any) -> None:
        whole = answer_without_spans()
        whole["meta_info"]["weight_version"] = self.label
        handler.answer(json.dumps(whole).encode())


Build = Callable[..., tuple[SGLangEngine, BrokenServer]]


@pytest.fixture
def build(place: EnginePlace) -> Iterator[Build]:
    """An engine on a fake server, whose routes may be given, and on others with theirs."""
    contexts, engines = [], []

    def start(routes: Mapping[str, Behaviour]) -> BrokenServer:
        fake = FakeServer(**routes)
        context = broken_server({f"/{name}": does for name, does in fake.routes.items()})
        contexts.append(context)
        return context.__enter__()

    def make(
        *others: Mapping[str, Behaviour],
        sender: Callable[[], HttpSender] | None = HttpSender,
        **routes: Behaviour,
    ) -> tuple[SGLangEngine, BrokenServer]:
        server = start(routes)
        urls = (server.url, *(start(other).url for other in others))
        spec = SGLangEngineSpec(urls=urls, health_interval_s=0.1)
        engines.append(SGLangEngine(place, spec, sender and sender()))
        return engines[-1], server

    yield make
    for engine in engines:
        engine.close()
    for context in contexts:
        context.__exit__(None, None, None)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Name and level of each event that was logged."""
    return [(row.event, row.levelname) for row in caplog.records if hasattr(row, "event")]


def publish(engine: SGLangEngine, version: int, tensors: Mapping[str, np.ndarray]) -> None:
    engine.pause("retract")
    session = engine.begin_update(version)
    for name, tensor in tensors.items():
        session.put(name, torch.from_numpy(tensor))
    session.commit()
    engine.resume()


def test_a_server_that_comes_up_is_told(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine, server = build()
    assert events(caplog) == [("server_started", "INFO")]
    assert server.url in caplog.records[-1].message
    assert engine.take_notices() == []


async def test_a_call_that_is_tried_again_is_told(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeServer()
    failing = iter([says(b'{"error": "boom"}', 500)])
    engine, _ = build(
        generate=lambda handler: next(failing, fake._answered)(handler),
        update_weight_version=fake._named,
    )
    await engine.generate(request())
    (row,) = [row for row in caplog.records if getattr(row, "event", "") == "call_retried"]
    assert (row.levelname, row.attempt, row.request) == ("WARNING", 1, "episode/0")
    assert "HTTP 500: boom" in row.message


async def test_a_server_that_is_lost_and_one_that_returns_are_told(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sick: list[bool] = []
    engine, _ = build({}, health=lambda handler: says(b"{}", 500 if sick else 200)(handler))
    sick.append(True)
    await until_async(
        lambda: sorted(one.state for one in engine.pool.servers) == ["lost", "serving"]
    )
    # the engine's thread is between the state and the notice
    await asyncio.wrap_future(engine.submit(asyncio.sleep(0)))
    (notice,) = engine.take_notices()
    assert (notice.event, notice.counts) == ("server_lost", {"count/lost_servers": 1.0})
    sick.clear()
    await asyncio.to_thread(publish, engine, 1, TENSORS)
    assert engine.take_notices() == []
    assert [one.state for one in engine.pool.servers] == ["serving", "serving"]
    assert events(caplog)[2:] == [("server_lost", "WARNING"), ("server_returned", "INFO")]


async def test_the_only_server_is_lost_and_comes_back_with_an_update(build: Build) -> None:
    sick: list[bool] = []
    engine, server = build(
        health=lambda handler: says(b"{}", 500 if sick else 200)(handler)
    )
    sick.append(True)
    await until_async(lambda: [one.state for one in engine.pool.servers] == ["lost"])
    with pytest.raises(EngineError, match="no server is left") as caught:
        await engine.generate(request())
    assert caught.value.retryable
    kind: Any = engine.state.kind
    spec = kind.spec
    kind.spec = spec.model_copy(update={"startup_timeout_s": 0.0})
    await asyncio.to_thread(engine.pause, "retract")
    with pytest.raises(EngineError, match="no server is left"):
        await asyncio.to_thread(engine.begin_update, 1)
    kind.spec = spec
    # a publish waits for it
    publishing = asyncio.create_task(asyncio.to_thread(publish, engine, 1, TENSORS))
    asked = server.calls.count("/health")
    await until_async(lambda: server.calls.count("/health") > asked + 1)
    assert engine.health().state == "paused"
    sick.clear()
    await publishing
    assert [one.state for one in engine.pool.servers] == ["serving"]
    answer = await engine.generate(request())
    assert {segment.policy_version for segment in answer.segments} == {1}


async def test_a_server_that_hangs_is_found_while_a_pause_waits_for_its_requests(
    build: Build,
) -> None:
    sick: list[bool] = []
    hangs = {
        "generate": keeps_silent,
        "health": lambda handler: says(b"{}", 500 if sick else 200)(handler),
    }
    engine, server = build({}, **hangs)
    asked = asyncio.create_task(engine.generate(request()))
    await until_async(lambda: "/generate" in server.calls)
    pausing = asyncio.create_task(asyncio.to_thread(engine.pause, "drain"))
    await until_async(lambda: engine.health().state == "paused")
    sick.append(True)
    await pausing
    assert [one.state for one in engine.pool.servers] == ["lost", "serving"]
    # what it had waits, and another server has it after the pause
    assert engine.health().waiting == 1
    await asyncio.to_thread(engine.resume)
    assert (await asked).finish_reason == "length"


async def test_a_server_whose_health_cannot_be_asked_is_lost(build: Build) -> None:
    engine, _ = build()
    [server] = engine.pool.servers
    engine.submit(server.client.close()).result()
    await until_async(lambda: server.state == "lost")


async def test_no_server_releases_memory_where_another_one_refuses(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, server = build({}, release_memory_occupation=DONE)

    async def refuses(tags: object, *, running: int) -> None:
        raise EngineError("2 requests run", retryable=False)

    monkeypatch.setattr(engine.pool.servers[1].client, "release", refuses)
    await asyncio.to_thread(engine.pause, "retract")
    with pytest.raises(EngineError, match="2 requests run"):
        await asyncio.to_thread(engine.sleep, ["weights", "kv_cache"])
    assert "/release_memory_occupation" not in server.calls
    await asyncio.to_thread(engine.resume)
    assert engine.health().state == "serving"


def told_digests(
    digest: str | Callable[[], str], device: str = "cpu", name: str = "model.norm.weight"
) -> Mapping[str, Behaviour]:
    """The routes of an SGLang 0.5.23 that tells this digest of its one weight."""
    info = {"version": "0.5.23", "dtype": "float32", "device": device}

    def told(handler: Any) -> None:
        own = digest if isinstance(digest, str) else digest()
        answer = {"success": True, "ranks": [{"checksums": {name: own}}]}
        says(json.dumps(answer).encode())(handler)

    return {
        "server_info": says(json.dumps(info).encode()),
        "weights_checker": told,
        "begin_weight_update": DONE,
        "end_weight_update": DONE,
    }


@pytest.mark.parametrize(("other", "differs"), [("1f", False), ("2e", True)])
def test_servers_that_tell_other_digests_after_an_update_are_named(
    build: Build, other: str, differs: bool
) -> None:
    engine, _ = build(told_digests(other), **told_digests("1f"))
    publish(engine, 1, TENSORS)
    if differs:
        with pytest.raises(
            WeightMismatchError,
            match=r"server 1 .* holds other weights than server 0 .* digests of "
            r"'model\.norm\.weight' \(cpu, rank 0 of 1\)",
        ):
            engine.checksum()
    else:
        assert engine.checksum().keys() == TENSORS.keys()


def test_a_server_that_is_lost_where_it_tells_digests_is_left_behind(build: Build) -> None:
    dies = {**told_digests("1f"), "weights_checker": says(b'{"error": "boom"}', 500)}
    engine, _ = build(dies, **told_digests("1f"))
    publish(engine, 1, TENSORS)
    assert engine.checksum().keys() == TENSORS.keys()
    assert [one.state for one in engine.pool.servers] == ["serving", "lost"]


def test_where_no_weights_will_be_sent_servers_of_different_ones_are_refused(
    build: Build,
) -> None:
    with pytest.raises(EngineError, match=r"server 1 .* holds other weights than server 0"):
        build(told_digests("2e"), sender=None, **told_digests("1f"))


@pytest.mark.wide
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("values", "digests", "fault"),
    [
        ((1.0, 2.0), ("1f", "2e"), None),
        ((1.0, 1.0), ("1f", "1f"), None),
        (
            (1.0, 2.0),
            ("1f", "1f"),
            "the bits of before in model.norm.weight, of which new ones",
        ),
        (
            (1.0, 1.0),
            ("1f", "2e"),
            "other bits than before in model.norm.weight, of which the sa",
        ),
    ],
)
def test_the_digests_of_servers_follow_what_was_sent(
    build: Build,
    device: str,
    values: tuple[float, float],
    digests: tuple[str, str],
    fault: str | None,
) -> None:
    now = [digests[0]]
    engine, _ = build(**told_digests(lambda: now[0], device))
    for version, (value, digest) in enumerate(zip(values, digests, strict=True), start=1):
        now[0] = digest
        publish(engine, version, {"model.norm.weight": np.full(4, value, np.float32)})
        if version == 2 and fault:
            with pytest.raises(
                WeightMismatchError, match=f"publish.2. the servers hold {fault}"
            ):
                engine.checksum()
        else:
            assert engine.checksum().keys() == TENSORS.keys()


def test_no_server_hashes_its_weights_to_come_up(build: Build) -> None:
    _, server = build(**told_digests("1f"))
    assert "/weights_checker" not in server.calls


def test_a_tensor_that_no_update_reaches_is_named(build: Build) -> None:
    engine, _ = build(**told_digests("1f", name="model.layers.7.mlp.gate_up_proj.weight"))
    publish(engine, 1, TENSORS)
    with pytest.raises(
        EngineError, match=r"another model: .* has no 'model\.layers\.7\.mlp"
    ):
        engine.checksum()


async def test_weights_that_were_released_serve_only_after_an_update(build: Build) -> None:
    engine, _ = build(
        release_memory_occupation=DONE, resume_memory_occupation=DONE, **told_digests("1f")
    )
    await asyncio.to_thread(publish, engine, 1, TENSORS)
    await asyncio.to_thread(engine.pause, "retract")
    await asyncio.to_thread(engine.sleep, ["weights", "kv_cache"])
    with pytest.raises(EngineError, match=r"released; call wake\(\['weights'\]\) first"):
        await asyncio.to_thread(engine.begin_update, 2)
    await asyncio.to_thread(engine.wake, ["weights", "kv_cache"])
    for refused in (engine.resume, lambda: engine.score([1, 2]), engine.checksum):
        with pytest.raises(
            EngineError, match=r"released since version 1 was sent, .*publish"
        ):
            await asyncio.to_thread(refused)
    assert engine.health().state == "paused"
    await asyncio.to_thread(publish, engine, 2, TENSORS)
    answer = await engine.generate(request())
    assert {segment.policy_version for segment in answer.segments} == {2}


def test_an_update_that_is_refused_is_told(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = build(update_weights_from_tensor=says(b'{"error": "no room"}', 400))
    with pytest.raises(
        EngineError, match="refused /update_weights_from_tensor with HTTP 400"
    ):
        publish(engine, 1, TENSORS)
    assert events(caplog) == [("update_refused", "WARNING")]
    assert "no room" in caplog.records[-1].message
    assert engine.health().state == "corrupt"


async def test_an_update_goes_to_a_server_without_brackets(build: Build) -> None:
    engine, server = build()
    await asyncio.to_thread(publish, engine, 1, TENSORS)
    answer = await engine.generate(request())
    assert {segment.policy_version for segment in answer.segments} == {1}
    assert "/begin_weight_update" not in server.calls


def test_a_server_without_a_tokenizer_cannot_match_stop_strings(place: EnginePlace) -> None:
    told = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True}

    def problems(own: EnginePlace) -> list[str]:
        return [sglang_problem(own, told, {}), vllm_problem(own, {"model_config": told})]

    assert problems(place) == ["", ""]
    for problem in problems(replace(place, stop_strings=True)):
        assert "start it without --skip-tokenizer-init" in problem


def test_a_server_below_the_least_version_is_not_used(build: Build) -> None:
    with pytest.raises(
        MachineError, match=r"is SGLang 0\.5\.17; agentrl needs at least 0\.5\.18"
    ):
        build(server_info=says(b'{"version": "0.5.17"}'))


def test_a_given_server_without_our_routes_is_told_what_it_lacks(
    place: EnginePlace,
) -> None:
    missing = says(b'{"detail": "Not Found"}', 404)
    routes = {"/version": says(b'{"version": "0.32.0"}'), "/abort_requests": missing}
    lacks = pytest.raises(EngineError, match=r"has no route .*with VLLM_SERVER_DEV_MODE=1")
    with broken_server(routes) as server, lacks:
        VLLMEngine(place, VLLMEngineSpec(urls=(server.url,)), None)


def test_a_start_in_vain_tells_what_was_answered_last(place: EnginePlace) -> None:
    with broken_server(
        {"/server_info": says(b'{"error": "still loading"}', 503)}
    ) as server:
        spec = SGLangEngineSpec(urls=(server.url,), startup_timeout_s=0.01)
        with pytest.raises(
            MachineError,
            match=r"did not answer within .*startup_timeout_s=0\.01 \(.* HTTP 503: still loading",
        ):
            SGLangEngine(place, spec, None)
