"""Whole runs of a game of two: both agents are trained, or one alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl import load_config
from agentrl.errors import ConfigError
from agentrl.run.replay import Replayer
from agentrl.store import RunDirectory, TrajectoryReader
from tests.run.tiny_run import TASK, metrics, train

DUEL = Path(__file__).parents[1] / "rollouts" / "duel.py"

CONFIG = f"""\
placement: {{mode: inline}}
model: {{build: "{TASK}:build_model"}}
env: {{entry_point: "{DUEL}:Duel", args: {{rounds: 2}}}}
data: {{train: "{TASK}:tasks", max_prompt_tokens: 800}}
rollout: {{group_size: 4, max_turns: 3, max_turn_tokens: 12, max_response_tokens: 200, max_running: 16}}
algorithm: {{name: grpo}}
train: {{steps: 2, batch_prompts: 2}}
optim: {{lr: 1.0e-3}}
checkpoint: {{every: null}}
"""  # noqa: E501


def played(
    tmp_path: Path, *overrides: str
) -> tuple[list[dict[str, Any]], TrajectoryReader]:
    run_dir = train(tmp_path, "run.deterministic=true", *overrides, text=CONFIG)
    return metrics(run_dir), TrajectoryReader(RunDirectory.open(run_dir))


@pytest.mark.parametrize("train", [True, False], ids=["self-play", "an untrained opponent"])
def test_a_game_of_two_is_trained_for_two_steps(tmp_path: Path, train: bool) -> None:
    agents = [] if train else ["env.agents={black: {train: false}}"]
    rows, reader = played(tmp_path, *agents)
    steps = [row for row in rows if "reward/mean" in row]
    assert len(steps) == 2
    for row in steps:
        assert row["reward_agent/white/mean"] == pytest.approx(
            -row["reward_agent/black/mean"]
        )
        assert row["reward/mean"] == row["reward_agent/white/mean"]
    found = {one.trajectory_id: one for one in reader.annotations()}
    assert found
    for stored in reader.get_many(list(found)):
        trajectory = stored.trajectory
        assert [turn.agent for turn in trajectory.turns] == ["white", "black"] * 2
        assert trajectory.seats["black"].train == train
        weights = found[trajectory.id].arrays["loss_weight"]
        sizes = [sum(map(len, turn.completion)) for turn in trajectory.turns]
        of_black = np.repeat([False, True] * 2, sizes)
        assert weights[of_black].any() <= train
        if train:  # lead and -lead: both have a spread, or neither
            assert weights[of_black].all() == weights[~of_black].all()
    replayed = Replayer(RunDirectory.open(tmp_path / "run")).replay(list(found))
    assert {str(one.difference or one.failure) for one in replayed} == {""}


HASTY = """
import time

from agentrl.envs import EpisodeView


def hasty(view: EpisodeView) -> float:
    return time.monotonic() if view.agent == "black" else 0.5
"""


@pytest.mark.slow
def test_a_replay_names_the_agent_whose_reward_differs(tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text(HASTY, encoding="utf-8")
    _, reader = played(tmp_path, 'reward.functions=["hasty.py:hasty"]', "train.steps=1")
    ids = [one.id for one in reader.summaries()]
    replayed = Replayer(RunDirectory.open(tmp_path / "run")).replay(ids)
    assert len(ids) == 8
    assert {str(one.difference or one.failure) for one in replayed} == {
        "reward hasty of black"
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "{foe: {engine: openai, openai: {base_url: 'http://h/v1', model: m}}}",
            r"env\.agents\.NAME\.train must be false with engine: openai",
        ),
        (
            "{foe: {engine: openai, train: false}}",
            r"env\.agents\.NAME\.openai describes no server: base_url",
        ),
        ("{foe: {engine: other, train: false}}", r"env\.agents\.foe\.engine"),
    ],
)
def test_a_wrong_agent_is_named_by_its_key(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    with pytest.raises(ConfigError, match=fault):
        load_config(tmp_path / "config.yaml", [f"env.agents={text}"])
