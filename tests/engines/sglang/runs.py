"""Runs of the tiny task on SGLang servers."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from agentrl.config.load import load_config
from agentrl.envs import EpisodeView
from agentrl.run.trainer import Trainer
from agentrl.store import read_jsonl
from tests.engines.sglang.models import CONTEXT
from tests.run.tiny_run import TASK, metrics, states
from tests.run.tiny_task import graded

CONFIG = f"""\
placement: {{mode: inline}}
env: {{tools: ["{TASK}:add"], describe_tools_in_prompt: false}}
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
  max_retries: 8
"""


def train(
    tmp_path: Path, model: Path, *overrides: str, reward: Callable[..., float] | None = None
) -> Path:
    """Trains three steps unless overridden; returns the run directory."""
    config, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(CONFIG, encoding="utf-8")
    settings = [f"run.dir={run_dir}", f"model.path={model}", *overrides]
    with Trainer(load_config(config, settings), reward=reward) as trainer:
        trainer.train()
    return run_dir


def assert_each_was_trained_once(run_dir: Path) -> None:
    """Nothing was lost, nothing failed, nothing was trained twice."""
    rows = read_jsonl(run_dir / "ledger.jsonl")
    trained = Counter(
        (row["group_index"], rollout_index)
        for row in rows
        if row["to"] == "trained"
        for rollout_index in row["rollout_indices"]
    )
    assert trained
    assert max(trained.values()) == 1
    counts = states(run_dir)
    left = {
        state: number
        for state, number in counts.items()
        if state in ("running", "finished", "buffered", "taken")
    }
    assert not any(left.values())
    assert counts.get("failed", 0) == 0


def assert_a_killed_server_costs_nothing(
    tmp_path: Path, model: Path, *overrides: str, server: Callable[[], int]
) -> None:
    """Trains three steps, and kills the server's process in the middle of the second."""
    scored: list[int] = []

    def kill_once(episode: EpisodeView) -> float:
        scored.append(1)
        if len(scored) == 16:  # the fourth episode of the second step
            os.kill(server(), signal.SIGKILL)
        return graded(episode)

    run_dir = train(tmp_path, model, *overrides, reward=kill_once)
    assert len(scored) > 16
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert_each_was_trained_once(run_dir)
