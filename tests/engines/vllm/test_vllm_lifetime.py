"""Servers of our own: one is killed, and comes back with the current weights; a run of the tiny
task whose server is killed in mid-step.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentrl.engines.vllm import VLLMEngine
from agentrl.weight_sync import DiskSender
from tests.engines.sglang.models import (
    NEAR,
    HuggingFace,
    in_flight,
    logprobs,
    made,
    request,
    versions,
)
from tests.engines.sglang.runs import assert_a_killed_server_costs_nothing
from tests.engines.vllm.test_vllm_served import publish

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def server_of(folder: Path) -> int:
    """The process of the vLLM server that serves a model below a folder, the launching one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        whole = " ".join(words)
        serves = "vllm.entrypoints.cli.main" in words and "supervise" not in whole
        if serves and str(folder) in whole:
            found.append(int(process.name))
    return min(found)


async def test_a_killed_server_comes_back_with_the_weights_that_were_sent(
    build: Callable[..., VLLMEngine], python: str, model: Path, reference: HuggingFace
) -> None:
    engine = await asyncio.to_thread(
        lambda: build(python=python, sender=lambda: DiskSender(None), startup_timeout_s=600)
    )
    reference.scale(1.03)
    await asyncio.to_thread(publish, engine, reference, 1)
    [running] = await in_flight(engine, request("killed", [5, 17, 9], max_new_tokens=8000))
    os.kill(server_of(model), signal.SIGKILL)
    # the same request, sent again to the server that was started again
    answer = await running
    assert versions(answer) == [1]
    np.testing.assert_allclose(
        logprobs(answer), reference.logprobs([5, 17, 9], made(answer)), atol=NEAR
    )
    assert [notice.event for notice in engine.take_notices()] == [
        "server_lost",
        "server_restarted",
    ]


def test_a_run_goes_on_when_its_server_is_killed_in_the_middle_of_a_step(
    tmp_path: Path, model: Path, python: str
) -> None:
    own = ("rollout.engine=vllm", f"rollout.vllm.python={python}")
    assert_a_killed_server_costs_nothing(
        tmp_path, model, *own, server=lambda: server_of(model)
    )
