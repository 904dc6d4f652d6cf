"""A run with trajectories, and a viewer of it that answers on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from agentrl.run.stage_tokenizer import keep_tokenizer
from agentrl.store import Annotation, JsonlWriter, RunDirectory, TrajectoryWriter
from agentrl.store.annotations.annotation import TOKEN_COLUMNS
from tests.viewer.browser.runs import byte_tokenizer
from tests.viewer.server.viewers import Client, make_trajectory, viewing


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices lie with the test, also those of processes that it starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> RunDirectory:
    """Three steps of two groups of two; the first step's are annotated."""
    made = RunDirectory.create(
        tmp_path / "runs" / "first",
        {
            "seed": 3,
            "created": "2026-11-22T10:00:00Z",
            "command": ["agentrl", "train", "c.yaml"],
        },
        "stages:\n  - {name: rl, train: {steps: 9}, algorithm: {name: grpo}}\n",
    )
    (made.models_folder / "start").mkdir(parents=True)
    tokenizer.save(str(made.models_folder / "start" / "tokenizer.json"))
    keep_tokenizer(made, "rl", made.models_folder / "start")
    with TrajectoryWriter(made) as writer:
        for step in range(1, 4):
            for group in (2 * step, 2 * step + 1):
                for rollout in range(2):
                    writer.write(make_trajectory(tokenizer, group, rollout), step)
            writer.seal(step)
        sampled = make_trajectory(tokenizer, 2).num_policy_tokens
        writer.declare(TOKEN_COLUMNS)
        for group in (2, 3):
            for rollout in range(2):
                old = np.full(sampled, -0.5, np.float32)
                if (group, rollout) == (2, 0):
                    old[5] = -3.0  # where the trainer and the sampler differ
                arrays = {
                    "old_logprobs": old,
                    "advantages": np.full(sampled, rollout - 0.5, np.float32),
                    "loss_weight": np.full(sampled, 0.25 / sampled, np.float32),
                    "token_loss": np.full(sampled, float(group), np.float32),
                }
                values = {"trained_step": 1, "stage": "rl"}
                writer.annotate(
                    Annotation(f"{group}-{rollout}-0", 1, values=values, arrays=arrays)
                )
        writer.flush()
    with_lines = JsonlWriter(made.metrics_path)
    for step in range(1, 4):
        logged = {"reward/mean": step / 4}
        if step == 1:
            logged |= {"mismatch/logp_abs/max": 2.5, "policy/loss": 2.5}
        with_lines.append({"step": step, "stage": "rl", "time": 100.0 + step, **logged})
    with_lines.close()
    return made


@pytest.fixture
def client(run: RunDirectory) -> Iterator[Client]:
    with viewing(run.root) as address, Client(address) as made:
        yield made
