"""Servers of our own that are killed: requests go on, and a server comes back with the current weights."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentrl.controller.weights import BucketSender
from agentrl.rollouts.sglang import SGLangEngine
from agentrl.run import load_config
from agentrl.run.trainer import Trainer
from agentrl.store import read_jsonl
from tests.rollouts.sglang.models import CONTEXT, HuggingFace, in_flight, logprobs, made, publish, request, versions
from tests.run.tiny_run import TASK, metrics, states
from tests.run.tiny_task import graded

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

RESTART_S = 400


def servers_of(folder: Path) -> list[int]:
    """Processes of SGLang servers that were started with a model below ``folder``, the launching one of each."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "sglang.launch_server" in words and "lifeline" not in " ".join(words) and str(folder) in " ".join(words):
            found.append(int(process.name))
    return sorted(found)


async def test_of_two_servers_one_is_killed_and_comes_back_with_the_current_weights(
    build: Callable[..., SGLangEngine], python: str, model: Path, reference: HuggingFace, tmp_path: Path
) -> None:
    own = shutil.copytree(model, tmp_path / "model")
    engine = await asyncio.to_thread(
        lambda: build(
            python=python, model_path=str(own), num_engines=2, sender=BucketSender, startup_timeout_s=RESTART_S
        )
    )
    reference.scale(1.03)
    await asyncio.to_thread(publish, engine, reference, 1)
    prompts = [[5, 17, n] for n in range(16)]
    running = await in_flight(engine, *(request(f"r{n}", p, max_new_tokens=400) for n, p in enumerate(prompts)))
    os.kill(servers_of(tmp_path)[0], signal.SIGKILL)
    answers = await asyncio.gather(*running)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert versions(answer) == [1]
        np.testing.assert_allclose(logprobs(answer), reference.logprobs(prompt, made(answer)), atol=1e-4)
    async with asyncio.timeout(RESTART_S):
        while sorted(engine.server_states().values()) != ["serving", "serving"]:
            await asyncio.sleep(0.2)
    await asyncio.to_thread(engine.checksum)
    again = await asyncio.gather(*(engine.generate(request(f"again{n}", p)) for n, p in enumerate(prompts)))
    for prompt, answer in zip(prompts, again, strict=True):
        np.testing.assert_allclose(logprobs(answer), reference.logprobs(prompt, made(answer)), atol=1e-4)


CONFIG = f"""\
controller: {{mode: inline}}
env: {{tools: ["{TASK}:add"], announce_tools: false}}
data: {{train: "{TASK}:tasks", max_prompt_tokens: 64}}
reward: {{functions: ["{TASK}:graded"]}}
train: {{steps: 3, batch_prompts: 3}}
optim: {{lr: 1.0e-2}}
rollout:
  engine: sglang
  group_size: 4
  max_turns: 3
  max_turn_tokens: 32
  max_response_tokens: 120
  context_tokens: {CONTEXT}
  turn_timeout_s: 300
  retries: 8
"""


def train(tmp_path: Path, model: Path, *overrides: str, reward: Callable[..., float] | None = None) -> Path:
    config, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(CONFIG, encoding="utf-8")
    settings = [f"run.dir={run_dir}", f"model.path={model}", *overrides]
    with Trainer(load_config(config, settings), reward=reward) as trainer:
        assert trainer.train().steps == 3
    return run_dir


def assert_each_was_trained_once(run_dir: Path) -> None:
    rows = read_jsonl(run_dir / "ledger.jsonl")
    trained = Counter((row["draw"], sibling) for row in rows if row["to"] == "trained" for sibling in row["siblings"])
    assert trained
    assert max(trained.values()) == 1
    counts = states(run_dir)
    left = {state: number for state, number in counts.items() if state in ("running", "finished", "buffered", "taken")}
    assert not any(left.values())
    assert counts.get("failed", 0) == 0


@pytest.mark.parametrize("weight_sync", ["disk", "tensor", "group"])
def test_training_publishes_each_step_and_samples_what_it_trains(
    tmp_path: Path, model: Path, server: str, weight_sync: str
) -> None:
    run_dir = train(tmp_path, model, f"rollout.sglang.urls=[{server}]", f"rollout.sglang.weight_sync={weight_sync}")
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert_each_was_trained_once(run_dir)


def test_a_run_goes_on_when_its_server_is_killed_in_the_middle_of_a_step(
    tmp_path: Path, model: Path, python: str
) -> None:
    scored: list[int] = []

    def kill_once(episode: object) -> float:
        scored.append(1)
        if len(scored) == 16:  # the fourth episode of the second step
            [server] = servers_of(tmp_path)
            os.kill(server, signal.SIGKILL)
        return graded(episode)  # type: ignore[arg-type]

    run_dir = train(tmp_path, model, f"rollout.sglang.python={python}", reward=kill_once)
    assert len(scored) > 16
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert_each_was_trained_once(run_dir)
