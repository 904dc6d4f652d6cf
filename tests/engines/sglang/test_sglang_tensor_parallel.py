"""A real server of two tensor-parallel ranks: weights reach both of them, in each of three ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agentrl.engines.sglang import SGLangEngine
from agentrl.weight_sync import BroadcastSender, DiskSender, HttpSender
from tests.engines.sglang.conftest import running_server
from tests.engines.sglang.models import HuggingFace, logprobs, made, publish, request, versions

pytestmark = pytest.mark.sglang

PROMPT = [5, 17, 200, 33, 8]


@pytest.fixture(scope="module")
def split_server(
    python: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with running_server(python, model, tmp_path_factory.mktemp("split-server"), tp_size=2) as url:
        yield url


@pytest.mark.parametrize("sender", [DiskSender, HttpSender, BroadcastSender])
async def test_both_ranks_hold_what_was_sent(
    build: Callable[..., SGLangEngine], split_server: str, reference: HuggingFace, sender: type
) -> None:
    engine = build(split_server, sender=sender)
    for version in (1, 2):
        reference.scale(1.03)
        await asyncio.to_thread(publish, engine, reference, version)  # compares each rank's digests
        answer = await engine.generate(request(f"v{version}", PROMPT))
        assert versions(answer) == [version]
        np.testing.assert_allclose(
            logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=1e-4
        )
