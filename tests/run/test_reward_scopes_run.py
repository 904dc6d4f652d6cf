"""Rewards of turns and groups, metrics, verl's function and bad rewards in whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import AgentRLError
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from tests.run.tiny_run import train

REWARDS = """
from agentrl.envs import Score, group_rewards, turn_rewards

@turn_rewards
def per_turn(view):
    return [0.25 for _ in view.turns]

@group_rewards
def rank(views):
    return [Score(float(n), {"rank": n}) for n, _ in enumerate(views)]

@group_rewards
def broken(views):
    return [None for _ in views]

def tokens(view):
    return float(len(view.turns))

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.0, "pred": solution_str}
"""


def trained(tmp_path: Path, **reward: Any) -> Path:
    (tmp_path / "rewards.py").write_text(REWARDS)
    short = ("stages.warmup.steps=1", "stages.rl.steps=2", "stages.rl.eval={}")
    return train(tmp_path, f"reward={json.dumps(reward)}", *short)


def test_parts_of_every_kind_reach_reward_metrics_and_store(tmp_path: Path) -> None:
    run = trained(
        tmp_path,
        functions=[
            {"function": "rewards.py:per_turn", "weight": 2.0},
            {"function": "rewards.py:rank"},
            {"function": "rewards.py:tokens", "weight": 0.0},
        ],
        custom={"path": "rewards.py"},
    )
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert rows[0]["reward_part/rank/mean"] == 1.5  # of 0, 1, 2, 3
    assert rows[0]["reward_part/tokens/mean"] >= 1.0
    reader = TrajectoryReader(RunDirectory.open(str(run)))
    ids = [one.id for one in reader.summaries(purpose="train")]
    for stored in reader.get_many(ids):
        own = stored.trajectory
        # each turn's share of the part, weighted
        assert [turn.rewards["per_turn"] for turn in own.turns] == [0.5] * len(own.turns)
        assert own.rewards["tokens"] == len(own.turns)
        assert own.reward == pytest.approx(0.5 * len(own.turns) + own.rewards["rank"])
        assert own.reasons["rank"] == {"rank": own.rewards["rank"]}
        assert own.reasons["compute_score"]["pred"] == "\n".join(t.text for t in own.turns)


def test_a_reward_that_gives_nothing_fails_its_episodes_and_is_never_zero(
    tmp_path: Path,
) -> None:
    with pytest.raises(AgentRLError, match="failed"):
        trained(tmp_path, functions=["rewards.py:broken"])
    reader = TrajectoryReader(RunDirectory.open(str(tmp_path / "run")))
    summaries = list(reader.summaries(purpose="train"))
    assert summaries
    assert {(one.status, one.status_reason, one.reward) for one in summaries} == {
        ("failed", "reward", None)
    }
