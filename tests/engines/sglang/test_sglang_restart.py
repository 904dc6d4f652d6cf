"""Servers of our own that are killed: requests go on, and a server comes back with the current
weights.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.engines.sglang import SGLangEngine
from agentrl.engines.sglang.server_side import forking_launch
from agentrl.errors import EngineError
from agentrl.weight_sync import HttpSender, SharedMemorySender
from tests.engines.sglang.digests import require_sent
from tests.engines.sglang.models import (
    HuggingFace,
    in_flight,
    logprobs,
    made,
    publish,
    request,
    versions,
)
from tests.engines.sglang.runs import assert_a_killed_server_costs_nothing
from tests.kit.waiting import DEADLINE_S

pytestmark = [pytest.mark.sglang]

LAUNCH = forking_launch.__file__


def servers_of(folder: Path) -> list[int]:
    """Processes of SGLang servers that were started with a model below ``folder``, the launching
    one of each.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if (
            LAUNCH in words
            and "supervise" not in " ".join(words)
            and str(folder) in " ".join(words)
        ):
            found.append(int(process.name))
    return sorted(found)


async def test_of_two_servers_one_is_killed_and_comes_back_with_the_current_weights(
    build: Callable[..., SGLangEngine],
    python: str,
    model: Path,
    reference: HuggingFace,
    tmp_path: Path,
) -> None:
    own = shutil.copytree(model, tmp_path / "model")

    def served(version: int) -> Iterator[tuple[str, torch.Tensor]]:
        assert version == 1
        return reference.module.named_parameters()

    engine = await asyncio.to_thread(
        lambda: build(
            python=python,
            model=str(own),
            num_servers=2,
            sender=lambda: SharedMemorySender(served),
            startup_timeout_s=DEADLINE_S,
        )
    )
    reference.scale(1.03)
    await asyncio.to_thread(publish, engine, reference, 1)
    prompts = [[5, 17, n] for n in range(16)]
    running = await in_flight(
        engine, *(request(f"r{n}", p, max_new_tokens=400) for n, p in enumerate(prompts))
    )
    os.kill(servers_of(tmp_path)[0], signal.SIGKILL)
    answers = await asyncio.gather(*running)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert versions(answer) == [1]
        np.testing.assert_allclose(
            logprobs(answer), reference.logprobs(prompt, made(answer)), atol=1e-4
        )
    async with asyncio.timeout(DEADLINE_S):
        while sorted(one.state for one in engine.pool.servers) != ["serving", "serving"]:
            await asyncio.sleep(0.2)
    await asyncio.to_thread(engine.checksum)
    require_sent(engine, reference.module.named_parameters())
    again = await asyncio.gather(
        *(engine.generate(request(f"again{n}", p)) for n, p in enumerate(prompts))
    )
    for prompt, answer in zip(prompts, again, strict=True):
        np.testing.assert_allclose(
            logprobs(answer), reference.logprobs(prompt, made(answer)), atol=1e-4
        )


def test_a_run_goes_on_when_its_server_is_killed_in_the_middle_of_a_step(
    tmp_path: Path, model: Path, python: str
) -> None:
    own = f"rollout.sglang.python={python}"
    assert_a_killed_server_costs_nothing(
        tmp_path, model, own, server=lambda: servers_of(tmp_path)[0]
    )


@pytest.mark.slow
async def test_a_server_that_dies_too_often_is_given_up_and_said_so(
    build: Callable[..., SGLangEngine],
    python: str,
    model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = shutil.copytree(model, tmp_path / "model")
    engine = await asyncio.to_thread(
        lambda: build(
            python=python,
            model=str(own),
            sender=HttpSender,
            startup_timeout_s=DEADLINE_S,
            max_restarts=1,
        )
    )
    shutil.rmtree(own)  # so that it cannot start again
    os.kill(servers_of(tmp_path)[0], signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        while "gone" not in (one.state for one in engine.pool.servers):
            await asyncio.sleep(0.2)
    events = [vars(record).get("event") for record in caplog.records]
    told = ["server_lost", "server_start_failed", "server_gone"]
    assert [event for event in events if event in told] == told
    with pytest.raises(EngineError, match="no server is left"):
        await engine.generate(request("after", [5]))
