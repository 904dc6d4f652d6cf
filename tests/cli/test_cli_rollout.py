"""``agentrl rollout`` keeps the episodes of a policy in a run directory, and completes what was begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest

from agentrl.run.collection import collect
from agentrl.run.played import named_policy
from agentrl.store import RunDirectory, TrajectoryReader, TrajectorySummary
from agentrl.types import load_object

TASK = Path(__file__).resolve().parents[1] / "run" / "tiny_task.py"

CONFIG = f"""\
controller: {{mode: inline}}
model: {{path: model}}
env: {{tools: ["{TASK}:add"], announce_tools: false}}
data: {{train: "{TASK}:tasks", max_prompt_tokens: 64}}
reward: {{functions: ["{TASK}:graded"]}}
rollout: {{group_size: 2, max_turns: 2, max_turn_tokens: 6, max_response_tokens: 40, max_running: 4}}
"""

Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collected")
    (folder / "model").mkdir()
    load_object(f"{TASK.name}:build_model", TASK.parent)(folder / "model", seed=0)
    path = folder / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def stored(out: Path) -> list[TrajectorySummary]:
    return TrajectoryReader(RunDirectory.open(out)).summaries()


def test_episodes_are_kept_as_a_data_set(agentrl: Run, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, printed, _ = agentrl("rollout", config, "--tasks", "3", "--out", out)
    assert code == 0
    assert "6 episodes" in printed
    assert [(s.draw, s.sibling) for s in stored(out)] == [(n, sibling) for n in range(3) for sibling in range(2)]
    rows = pyarrow.dataset.dataset(out / "traj" / "sealed", format="parquet").to_table()
    assert rows.num_rows == 6
    assert {"token_ids", "reward", "task"} <= set(rows.column_names)


def test_more_tasks_are_added_to_those_that_are_there(agentrl: Run, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert agentrl("rollout", config, "--tasks", "2", "--out", out)[0] == 0
    before = stored(out)
    assert agentrl("rollout", config, "--tasks", "3", "--out", out)[0] == 0
    after = stored(out)
    assert after[: len(before)] == before  # played once
    assert len(after) == 6


def test_what_was_interrupted_goes_on(config: Path, tmp_path: Path) -> None:
    alone = named_policy(config, None, (), command="agentrl rollout")

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(alone, tmp_path / "out", num_tasks=4, played=interrupt)
    kept = {s.id: s.recorded_at for s in stored(tmp_path / "out")}
    assert len(kept) == 4
    told: list[tuple[int, int]] = []
    collected = collect(alone, tmp_path / "out", num_tasks=4, played=lambda done, total: told.append((done, total)))
    assert told == [(3, 4), (4, 4)]
    assert {s.id: s.recorded_at for s in collected if s.id in kept} == kept
    assert len(collected) == 8


def test_other_settings_go_to_another_folder(agentrl: Run, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert agentrl("rollout", config, "--tasks", "1", "--out", out)[0] == 0
    code, _, error = agentrl("rollout", config, "rollout.temperature=0.5", "--tasks", "1", "--out", out)
    assert (code, "holds episodes of other settings" in error) == (2, True)
    code, _, error = agentrl("rollout", config, "--samples", "3", "--tasks", "1", "--out", out)
    assert (code, "holds episodes of other --samples" in error) == (2, True)


def test_a_configuration_without_a_model_is_refused(agentrl: Run, config: Path, tmp_path: Path) -> None:
    text = config.read_text(encoding="utf-8").replace("model: {path: model}\n", "")
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    code, _, error = agentrl("rollout", tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert code == 2
    assert "name the policy: agentrl rollout RUN|MODEL" in error


def test_the_record_says_what_was_asked_for(agentrl: Run, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert agentrl("rollout", config, "--tasks", "1", "--samples", "3", "--out", out)[0] == 0
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["collection"] == {"samples": 3}
    assert len(stored(out)) == 3
