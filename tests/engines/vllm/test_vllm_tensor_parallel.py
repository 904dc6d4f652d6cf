"""A real vLLM server of two tensor-parallel ranks: its numbers, and weights in each way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agentrl.engines.base import WeightSender
from agentrl.weight_sync import BroadcastSender, DiskSender, HttpSender, SharedMemorySender
from tests.engines.sglang.models import NEAR, HuggingFace, logprobs, made, request, versions
from tests.engines.vllm.conftest import running_server
from tests.engines.vllm.test_vllm_served import PROMPT, Build, publish

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def split_server(
    python: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with running_server(python, model, tmp_path_factory.mktemp("split"), tp_size=2) as url:
        yield url


@pytest.mark.parametrize(
    "sender", [SharedMemorySender, DiskSender, HttpSender, BroadcastSender]
)
async def test_both_ranks_hold_what_was_sent(
    build: Build,
    split_server: str,
    reference: HuggingFace,
    sender: Callable[[], WeightSender],
) -> None:
    engine = build(split_server, sender=sender, tp_size=2)
    for version in (1, 2):
        reference.scale(1.03)
        await asyncio.to_thread(publish, engine, reference, version)
        answer = await engine.generate(request(f"v{version}", PROMPT, temperature=0.7))
        assert versions(answer) == [version]
        np.testing.assert_allclose(
            logprobs(answer), reference.logprobs(PROMPT, made(answer), 0.7), atol=NEAR
        )
