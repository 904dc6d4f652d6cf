"""When publish returns, the engine serves the trainer's very weights; a corrupt engine answers
nothing (invariant 9).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engines.torch import TorchEngine
from agentrl.errors import EngineError, TrainingError
from agentrl.training import Actor, DistSpec, join, leave
from agentrl.types import GenerateRequest, SamplingParams, concat_ids, frozen_ints
from agentrl.weight_sync import publish_in_process
from agentrl.weight_sync.verify import trainer_reference
from tests.controller.tiny import actor_spec, engine_spec


@pytest.fixture
def actor(model: Path) -> Iterator[Actor]:
    join(DistSpec())
    yield Actor(actor_spec(model), DistSpec())
    leave()


@pytest.fixture
def engine(model: Path) -> Iterator[TorchEngine]:
    engine = engine_spec(model).build()
    yield engine
    engine.close()


def request() -> GenerateRequest:
    return GenerateRequest(
        "r", "s", frozen_ints([1, 2, 3]), SamplingParams(6, temperature=0.0), seed=0
    )


def change(actor: Actor) -> None:
    with torch.no_grad():
        for parameter in actor.backend.model.parameters():
            parameter.mul_(1.5)


@pytest.mark.invariant
async def test_the_engine_serves_what_the_trainer_has(
    actor: Actor, engine: TorchEngine
) -> None:
    before = await engine.generate(request())
    change(actor)
    report = publish_in_process(actor, engine, 4)
    assert report is not None
    assert engine.checksum() == actor.checksum()
    assert report.tensors == len(actor.checksum())
    after = await engine.generate(request())
    assert [segment.policy_version for segment in (*before.segments, *after.segments)] == [
        0,
        4,
    ]
    assert concat_ids(before.segments).tolist() != concat_ids(after.segments).tolist()


async def test_what_is_served_stays_while_the_trainer_writes_in_place(
    actor: Actor, engine: TorchEngine
) -> None:
    publish_in_process(actor, engine, 4)
    sums, before = engine.checksum(), await engine.generate(request())
    steps: list[int] = []

    def step(ids: np.ndarray, _logprobs: np.ndarray) -> None:
        # between two tokens of the request, from the engine's own thread
        change(actor)
        steps.append(ids.size)

    after = await engine.generate(replace(request(), on_tokens=step))
    assert len(steps) > 1
    assert engine.checksum() == sums
    ((one,), (other,)) = before.segments, after.segments
    assert other.policy_version == 4
    assert other.token_ids.tolist() == one.token_ids.tolist()
    np.testing.assert_allclose(other.logprobs, one.logprobs, atol=1e-5)


async def test_publishing_unchanged_weights_changes_nothing_but_the_version(
    actor: Actor, engine: TorchEngine
) -> None:
    before = await engine.generate(request())
    publish_in_process(actor, engine, 1)
    after = await engine.generate(request())
    assert concat_ids(before.segments).tolist() == concat_ids(after.segments).tolist()


async def refuses(engine: TorchEngine) -> None:
    with pytest.raises(EngineError):
        await engine.generate(request())


class Through:
    """An engine, and its update, which passes through ``alter``, as a faulty transport would."""

    def __init__(self, engine: TorchEngine, alter: Any) -> None:
        self._engine, self._alter = engine, alter
        self._session: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def begin_update(self, version: int) -> Any:
        self._session = self._engine.begin_update(version)
        return self

    def put(self, name: str, tensor: torch.Tensor) -> None:
        self._alter(self._session.put, name, tensor)

    def commit(self) -> None:
        self._session.commit()

    def abort(self) -> None:
        self._session.abort()


def flip_one_bit(put: Any, name: str, tensor: torch.Tensor) -> None:
    tensor = tensor.clone()
    if name == "model.norm.weight":
        tensor.view(torch.int32)[5] ^= 1
    put(name, tensor)


@pytest.mark.invariant
async def test_one_wrong_bit_is_seen_and_the_engine_answers_nothing(
    actor: Actor, engine: TorchEngine
) -> None:
    change(actor)
    with pytest.raises(
        EngineError,
        match=r"after publish\(4\) the engine's weights differ from the trainer's in 1 of \d+ "
        r"tensors, "
        r"first 'model\.norm\.weight'",
    ):
        publish_in_process(actor, Through(engine, flip_one_bit), 4)  # type: ignore[arg-type]
    assert engine.health().state == "closed"
    await refuses(engine)


class Scores:
    """An engine whose servers score otherwise."""

    def __init__(self, engine: TorchEngine, alter: Any) -> None:
        self._engine, self._alter = engine, alter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def score(self, token_ids: Any) -> Any:
        own = self._engine.score(token_ids)["torch"]
        return {"server 0": own, "server 1": self._alter(own)}


@pytest.mark.parametrize(
    "alter",
    [lambda own: own - 0.1, lambda own: own[:-1], lambda own: own * np.float32("nan")],
    ids=["other", "short", "nan"],
)
async def test_a_server_whose_probe_differs_is_named_and_the_engine_answers_nothing(
    actor: Actor, engine: TorchEngine, alter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        EngineError,
        match=r"after publish\(4\) server 1 computes with other weights than the trainer: .* at "
        r"most "
        r"0\.005 is rounding in float32",
    ) as caught:
        publish_in_process(actor, Scores(engine, alter), 4)  # type: ignore[arg-type]
    assert not caught.value.retryable
    assert [row.event for row in caplog.records if hasattr(row, "event")] == [
        "weights_differ"
    ]
    assert engine.health().state == "closed"
    await refuses(engine)


async def test_weights_that_are_not_finite_are_named(
    actor: Actor, engine: TorchEngine
) -> None:
    with torch.no_grad():
        dict(actor.backend.model.hf.named_parameters())["model.norm.weight"][5] = float(
            "nan"
        )
    with pytest.raises(
        TrainingError,
        match=r"NaN or infinite in 1 of \d+ tensors, first 'model\.norm\.weight' \(1 of \d+ num",
    ):
        publish_in_process(actor, engine, 4)
    assert engine.health().state == "paused"


def test_logprobs_that_overflow_are_no_fault_of_the_weights(actor: Actor) -> None:
    with torch.no_grad():
        dict(actor.backend.model.hf.named_parameters())["model.norm.weight"].fill_(3e38)
    with pytest.raises(TrainingError, match="though its weights are finite in float32"):
        trainer_reference(actor, "float32", {})


def test_the_probe_agrees_with_the_trainer_within_rounding(
    actor: Actor, engine: TorchEngine
) -> None:
    change(actor)
    publish_in_process(actor, engine, 4)
    probe = trainer_reference(actor, "float32", {}).probe
    (scored,) = engine.score(probe.token_ids).values()
    assert scored.shape == (len(probe.token_ids) - 1,)
    np.testing.assert_allclose(scored, probe.logprobs, atol=1e-4)


async def test_a_tensor_that_is_lost_tears_the_engine(
    actor: Actor, engine: TorchEngine
) -> None:
    def lose(put: Any, name: str, tensor: torch.Tensor) -> None:
        if name != "model.norm.weight":
            put(name, tensor)

    with pytest.raises(EngineError, match=r"model\.norm\.weight"):
        publish_in_process(actor, Through(engine, lose), 4)  # type: ignore[arg-type]
    assert engine.health().state == "corrupt"
    await refuses(engine)


async def test_a_transport_that_breaks_halfway_tears_the_engine(
    actor: Actor, engine: TorchEngine
) -> None:
    def break_off(put: Any, name: str, tensor: torch.Tensor) -> None:
        if name == "model.norm.weight":
            raise OSError("connection reset")
        put(name, tensor)

    with pytest.raises(OSError, match="connection reset"):
        publish_in_process(actor, Through(engine, break_off), 4)  # type: ignore[arg-type]
    assert engine.health().state == "corrupt"
    await refuses(engine)


def test_a_rank_without_an_engine_helps_to_gather(actor: Actor) -> None:
    assert publish_in_process(actor, None, 1) is None
