"""Weights reach a real server in each of three ways, and only whole."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engines.sglang import SGLangEngine
from agentrl.engines.sglang import tensor_bucket as bucket
from agentrl.errors import EngineError
from agentrl.training import Actor, DistSpec, join, leave
from agentrl.weight_sync import (
    BroadcastSender,
    DiskSender,
    HttpSender,
    SharedMemorySender,
    publish_in_process,
)
from agentrl.weight_sync import batches as batch
from tests.controller.tiny import actor_spec
from tests.engines.sglang.digests import ON_GPU, require_sent
from tests.engines.sglang.models import (
    DTYPE,
    NEAR,
    HuggingFace,
    in_flight,
    logprobs,
    made,
    publish,
    request,
    versions,
)

pytestmark = pytest.mark.sglang

PROMPT = [5, 17, 200, 33, 8]
SENDERS = [SharedMemorySender, DiskSender, HttpSender, BroadcastSender]
Build = Callable[..., SGLangEngine]


@pytest.fixture
def actor(model: Path) -> Iterator[Actor]:
    join(DistSpec())
    yield Actor(actor_spec(model), DistSpec())
    leave()


def change(actor: Actor, factor: float) -> None:
    with torch.no_grad():
        for parameter in actor.backend.model.parameters():
            parameter.mul_(factor)


@pytest.mark.parametrize("sender", SENDERS)
async def test_the_servers_serve_what_the_trainer_has(
    build: Build, server: str, actor: Actor, reference: HuggingFace, sender: type
) -> None:
    engine = build(server, sender=sender)
    for version in (1, 2):
        change(actor, 1.03)
        reference.scale(1.03)
        report = await asyncio.to_thread(publish_in_process, actor, engine, version)
        assert report is not None
        assert engine.checksum() == actor.checksum(DTYPE)
        require_sent(engine, reference.module.named_parameters())
        answer = await engine.generate(request(f"v{version}", PROMPT))
        assert versions(answer) == [version]
        np.testing.assert_allclose(
            logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=NEAR
        )


@pytest.mark.parametrize("sender", SENDERS)
async def test_weights_in_many_small_portions(
    build: Build,
    server: str,
    reference: HuggingFace,
    sender: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "BATCH_BYTES", 5000)
    engine = build(server, sender=sender)
    reference.scale(0.98)
    await asyncio.to_thread(publish, engine, reference, 3)
    answer = await engine.generate(request("portions", PROMPT))
    np.testing.assert_allclose(
        logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=NEAR
    )


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_request_in_flight_goes_on_with_both_versions_named(
    build: Build, server: str, model: Path, reference: HuggingFace, sender: type
) -> None:
    engine = build(server, sender=sender)
    await asyncio.to_thread(publish, engine, reference, 1)
    before = HuggingFace(model)
    [task] = await in_flight(
        engine, request("mixed", PROMPT, max_new_tokens=450, temperature=0.0)
    )
    await asyncio.sleep(0.3)
    reference.scale(1.05)
    await asyncio.to_thread(publish, engine, reference, 2)
    answer = await task
    assert answer.stale_kv == "never"
    old = [s for s in answer.segments if s.policy_version == 1]
    tokens = made(answer)
    split = sum(len(s) for s in old)
    wanted = np.concatenate(
        [
            before.logprobs(PROMPT, tokens)[:split],
            reference.logprobs(PROMPT, tokens)[split:],
        ]
    )
    np.testing.assert_allclose(logprobs(answer), wanted, atol=NEAR)


async def test_an_update_in_place_marks_what_read_old_kv(
    build: Build, server: str, reference: HuggingFace
) -> None:
    engine = build(server, sender=HttpSender)
    await asyncio.to_thread(publish, engine, reference, 1)
    [task] = await in_flight(
        engine, request("stale", PROMPT, max_new_tokens=450, temperature=0.0)
    )

    def update() -> None:
        engine.pause("in_place")
        session = engine.begin_update(2)
        for name, parameter in reference.module.named_parameters():
            session.put(name, parameter)
        session.commit()
        engine.resume()

    await asyncio.to_thread(update)
    assert (await task).stale_kv == "always"
    await asyncio.to_thread(publish, engine, reference, 3)
    assert (await engine.generate(request("fresh", PROMPT))).stale_kv == "never"


async def test_an_engine_without_a_sender_takes_no_weights(
    build: Build, server: str, reference: HuggingFace
) -> None:
    await asyncio.to_thread(publish, build(server, sender=HttpSender), reference, 1)
    engine = build(server)
    await asyncio.to_thread(engine.pause, "retract")
    with pytest.raises(EngineError, match="built without a sender"):
        engine.begin_update(1)


def alter_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    real = bucket.flattened_bucket

    def flipped(arrays: Any) -> bytes:
        arrays[0].data[7] ^= 1
        try:
            return real(arrays)
        finally:
            arrays[0].data[7] ^= 1

    monkeypatch.setattr(bucket, "flattened_bucket", flipped)


@pytest.mark.skipif(ON_GPU, reason="the oracle knows the hash of a CPU")
async def test_one_wrong_bit_is_seen_by_the_oracle(
    build: Build,
    server: str,
    actor: Actor,
    reference: HuggingFace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the tests that compare each server's digests with it prove what they say."""
    engine = build(server, sender=HttpSender)
    alter_payload(monkeypatch)
    await asyncio.to_thread(publish_in_process, actor, engine, 1)
    with pytest.raises(AssertionError):
        require_sent(engine, reference.module.named_parameters())


async def test_other_weights_than_the_trainers_are_seen_by_the_probe(
    build: Build, server: str, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(server, sender=HttpSender)
    real = bucket.flattened_bucket
    monkeypatch.setattr(bucket, "flattened_bucket", lambda arrays: real(zeroed(arrays)))
    with pytest.raises(
        EngineError, match=r"server 0 \(.*\) computes with other weights than the"
    ):
        await asyncio.to_thread(publish_in_process, actor, engine, 1)
    assert engine.health().state == "closed"


def zeroed(arrays: Any) -> Any:
    return [replace(arrays[0], data=np.zeros_like(arrays[0].data)), *arrays[1:]]


@pytest.mark.parametrize("sender", SENDERS)
async def test_a_tensor_that_was_not_put_tears_the_engine(
    build: Build, server: str, reference: HuggingFace, sender: type
) -> None:
    engine = build(server, sender=sender)

    def incomplete() -> None:
        engine.pause("retract")
        session = engine.begin_update(1)
        for name, parameter in reference.module.named_parameters():
            if name != "model.norm.weight":
                session.put(name, parameter)
        session.commit()

    with pytest.raises(
        EngineError, match=r"1 of \d+ tensors were not put, first 'model\.norm"
    ):
        await asyncio.to_thread(incomplete)
    assert engine.health().state == "corrupt"
    with pytest.raises(EngineError, match="corrupt"):
        await engine.generate(request("corrupt", PROMPT))


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("model.other.weight", (2,), r"has no tensor 'model\.other\.weight'"),
        ("model.norm.weight", (3,), "must have shape"),
    ],
)
async def test_a_tensor_of_another_model_never_reaches_a_server(
    build: Build, server: str, name: str, shape: tuple[int, ...], said: str
) -> None:
    engine = build(server, sender=HttpSender)

    def put() -> None:
        engine.pause("retract")
        engine.begin_update(1).put(name, torch.zeros(shape))

    with pytest.raises(EngineError, match=said):
        await asyncio.to_thread(put)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 32}, "hidden_size is 64, .* has 32"),
        ({"vocab_size": 301}, "vocab_size is 300, .* has 301"),
        ({"model_type": "qwen3"}, "model_type is 'qwen2', .* has 'qwen3'"),
    ],
)
def test_a_server_of_another_model_is_refused(
    build: Build,
    server: str,
    model: Path,
    tmp_path: Path,
    change: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(EngineError, match=f"serves another model: {said}"):
        build(
            server,
            model=str(altered(model, tmp_path / "other", **change)),
            sender=HttpSender,
        )


def altered(model: Path, folder: Path, **config: Any) -> Path:
    """The model under a configuration with other values."""
    shutil.copytree(model, folder)
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(own | config))
    return folder


def test_a_server_with_a_shorter_context_is_refused(
    build: Build, server: str, model: Path, tmp_path: Path
) -> None:
    longer = altered(model, tmp_path / "longer", max_position_embeddings=4096)
    with pytest.raises(
        EngineError,
        match=r"takes prompts below \d+ tokens, EnginePlace\.context_tokens=4096 needs more",
    ):
        build(server, context_tokens=4096, model=str(longer))
