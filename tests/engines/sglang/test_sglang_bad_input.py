"""What a real server is not told, or answers so that nothing can be trained on it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch

from agentrl.engines.servers.http_client import RefusedError
from agentrl.engines.sglang import SGLangEngine
from agentrl.errors import EngineError
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.weight_sync import HttpSender
from tests.engines.servers.broken_server import Handler, passes_on, says
from tests.engines.servers.sglang_answers import sglang_client
from tests.engines.sglang.conftest import Neighbour
from tests.engines.sglang.models import HuggingFace, publish, request
from tests.engines.sglang.runs import assert_each_was_trained_once, train
from tests.kit.waiting import DEADLINE_S

pytestmark = pytest.mark.sglang

PROMPT = [5, 17, 200, 33, 8]


async def test_a_sampling_key_that_the_server_does_not_know_is_named(server: str) -> None:
    client = sglang_client(server, call_timeout_s=60.0)
    body = {"input_ids": PROMPT, "sampling_params": {"temprature": 0.7}}
    with pytest.raises(
        RefusedError, match=r"server 0 refused /generate with HTTP 400: .*temprature"
    ):
        await client.json("/generate", body, timeout_s=60.0)
    await client.close()


def test_a_server_that_samples_from_another_distribution_by_itself_is_refused(
    build: Callable[..., SGLangEngine], neighbour: Neighbour
) -> None:
    own = neighbour(says(b'{"preferred_sampling_params": {"top_p": 0.9}}'), "/model_info")
    with pytest.raises(
        EngineError, match=r"samples with \{'top_p': 0.9\} what a request leaves open"
    ):
        build(own.url, sender=HttpSender)


def test_a_server_that_computes_in_another_dtype_is_refused(
    build: Callable[..., SGLangEngine], server: str, neighbour: Neighbour
) -> None:
    info = httpx.get(
        f"{server}/server_info", timeout=DEADLINE_S, trust_env=False
    ).json() | {"dtype": "auto"}
    own = neighbour(says(json.dumps(info).encode()), "/server_info")
    with pytest.raises(
        EngineError,
        match=r"computes in float16 \(its --dtype is 'auto'\), EnginePlace.dtype='float32'",
    ):
        build(own.url, sender=HttpSender)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
async def test_logprobs_of_weights_that_are_no_numbers_are_refused(
    build: Callable[..., SGLangEngine],
    server: str,
    reference: HuggingFace,
    temperature: float,
) -> None:
    engine = build(server, sender=HttpSender)
    with torch.no_grad():
        reference.module.model.norm.weight[3] = float("nan")
    await asyncio.to_thread(publish, engine, reference, 1)
    with pytest.raises(
        RefusedError, match="a logprob is nan, which is not a finite number"
    ):
        await engine.generate(request("nan", PROMPT, temperature=temperature))


def test_a_completion_without_tokens_is_a_turn_of_an_episode_that_is_trained(
    tmp_path: Path, model: Path, server: str, neighbour: Neighbour
) -> None:
    calls, real = itertools.count(), passes_on(server)

    def often_nothing(handler: Handler) -> None:
        if b"logprob_start_len" in handler.body or next(calls) % 3:  # the probe is answered
            return real(handler)
        meta = {
            "finish_reason": {"type": "stop", "matched": None},
            "completion_tokens": 0,
            "weight_versions": [],
        }
        sent = json.loads(handler.body)["input_ids"]
        handler.answer(
            json.dumps(
                {"output_ids": [], "meta_info": {**meta, "prompt_tokens": len(sent)}}
            ).encode()
        )

    run_dir = train(
        tmp_path,
        model,
        f"rollout.sglang.urls=[{neighbour(often_nothing).url}]",
        "train.steps=2",
    )
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    turns = [
        turn for row in reader.summaries() for turn in reader.get(row.id).trajectory.turns
    ]
    assert any(not turn.completion for turn in turns)
    assert_each_was_trained_once(run_dir)
