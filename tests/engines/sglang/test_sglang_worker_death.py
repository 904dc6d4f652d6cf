"""A rollout worker that dies takes its SGLang server along; another worker and server go on where
it was.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agentrl.envs import EpisodeView
from agentrl.store import read_jsonl
from tests.engines.sglang.runs import assert_each_was_trained_once, train
from tests.run.tiny_run import metrics
from tests.run.tiny_task import graded

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


def test_a_worker_is_killed_in_the_middle_of_a_step_and_the_run_goes_on(
    tmp_path: Path, model: Path, python: str
) -> None:
    scored, killed = tmp_path / "scored", tmp_path / "killed"

    def kill_once(episode: EpisodeView) -> float:
        with scored.open("a") as file:
            file.write(".")
        if scored.stat().st_size >= 16 and not killed.exists():  # more than a batch
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return graded(episode)

    apart = (
        "placement.mode=ray",
        "placement.rollout_workers=1",
        f"rollout.sglang.python={python}",
    )
    run_dir = train(tmp_path, model, *apart, reward=kill_once)
    rows = metrics(run_dir)
    assert killed.exists()
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert sum(row.get("count/lost_workers", 0) for row in rows) == 1
    # played by the weights that were published last
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert "worker_lost" in {row["event"] for row in read_jsonl(run_dir / "events.jsonl")}
    assert_each_was_trained_once(run_dir)
