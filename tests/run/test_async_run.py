"""A whole run whose rollouts run ahead of training: staleness stays within its bound, and the
ledger balances.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from agentrl.config.load import load_config
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from tests.run.tiny_run import CONFIG, states, train

pytestmark = pytest.mark.slow

RL = "  - name: rl\n"
# with what tokens of older versions need
AHEAD = CONFIG.replace(
    RL,
    f"{RL}    algorithm: {{name: grpo, rollout_correction: {{level: token}}, "
    "filter_zero_variance: false}\n",
)
ALWAYS = ("run.deterministic=false", "stages.rl.eval.sets={}")


@pytest.mark.parametrize(
    "overrides",
    [
        ("rollout.schedule=one_step_off",),
        ("rollout.schedule=async", "rollout.max_staleness=2"),
        (
            "rollout.schedule=async",
            "rollout.pause_mode=in_place",
            "rollout.on_stale=mask_tokens",
        ),
        ("rollout.oversample=1.0",),
    ],
    ids=["one_step_off", "async", "masked", "oversample"],
)
def test_tokens_are_no_staler_than_allowed(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run_dir = tmp_path / "run"
    train(tmp_path, *ALWAYS, *overrides, text=AHEAD)
    rows = [row for row in read_jsonl(run_dir / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    loaded = load_config(run_dir / "config.resolved.yaml")
    bound = loaded.resolved_stages()[-1].rollout.max_staleness
    behind = [row["async/staleness/max"] for row in rows]
    assert max(behind) <= bound
    assert (max(behind) > 0) == (bound > 0)  # it did run ahead
    assert not states(run_dir).keys() & {"running", "finished", "buffered", "taken"}
    if bound and "rollout.on_stale=mask_tokens" not in overrides:  # nothing was lost
        assert states(run_dir).keys() == {"trained"}
        assert {row["async/dropped"] for row in rows} == {0.0}
        assert sum(row["async/issued"] for row in rows) == 5 * 3
    rewards = trained_rewards(run_dir)
    assert any("ended/reward/mean" in row for row in rows) == (bound > 0)
    for row in rows if bound else ():  # every finished group is trained there
        assert row["reward/mean"] == pytest.approx(np.mean(rewards[int(row["step"])]))


def trained_rewards(run_dir: Path) -> dict[int, list[float]]:
    """The rewards of the trajectories that each step trained, by ledger and store."""
    step_of = {
        (row["group_index"], index): row["step"]
        for row in read_jsonl(run_dir / "ledger.jsonl")
        if row.get("to") == "trained"
        for index in row["rollout_indices"]
    }
    found: dict[int, list[float]] = defaultdict(list)
    for one in TrajectoryReader(RunDirectory(run_dir)).summaries():
        if not one.label and (step := step_of.get((one.group_index, one.rollout_index))):
            found[step].append(one.reward)
    return found


def test_rollout_workers_play_while_the_ranks_train(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ray = ("placement.mode=ray", "placement.rollout_workers=2", "rollout.schedule=async")
    train(tmp_path, *ALWAYS, *ray, text=AHEAD)
    rows = [row for row in read_jsonl(run_dir / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert max(row["async/staleness/max"] for row in rows) == 1
    assert states(run_dir).keys() == {"trained"}
