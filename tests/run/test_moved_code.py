"""A run whose configuration names the project's own code, after the project has moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import RunConfig, load_config, to_yaml
from agentrl.run.lifetime.resumption import resume_directory
from agentrl.run.policy_source import named_policy, policy_folder
from agentrl.run.replay.replay import Replayer
from agentrl.store import RunDirectory

SAMPLER = """\
class Mine:
    def __init__(self, tasks, seed):
        pass

    def next(self):
        return 0

    def observe(self, task_index, outcome):
        pass

    def state(self):
        return None

    def load(self, state):
        pass
"""
CONFIG = """\
model: {path: some/model}
data: {train: task.py:tasks, sampler: sampler.py:Mine}
"""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sampler.py").write_text(SAMPLER)
    (tmp_path / "here" / "config.yaml").write_text(CONFIG)
    return load_config(tmp_path / "here" / "config.yaml")


@pytest.fixture
def run(tmp_path: Path, config: RunConfig) -> RunDirectory:
    """A run whose code lay in a folder that is gone."""
    before = config.replace(run=config.run.replace(base_dir=str(tmp_path / "gone")))
    directory = RunDirectory.create(tmp_path / "run", {"seed": 0}, to_yaml(before))
    (directory.models_folder / "train").mkdir(parents=True)
    return directory


def test_it_is_resumed(run: RunDirectory, config: RunConfig) -> None:
    was, now = str(config.base_dir.parent / "gone"), str(config.base_dir)
    told = resume_directory(run, config, config.resolved_stages())
    assert told == [f"moved: run.base_dir {was!r} -> {now!r}"]
    # who plays or replays the run without a configuration reads this file
    assert load_config(run.config_path).base_dir == config.base_dir
    assert any(f"{now}/sampler.py" in line for line in Replayer(run).code())
    (entry,) = run.read_record()["resumed"]
    assert entry["moved"] == {"run.base_dir": [was, now]}
    assert not list(run.root.glob("config.resolved.*.yaml"))


def test_it_is_resumed_again_without_a_word(run: RunDirectory, config: RunConfig) -> None:
    resume_directory(run, config, config.resolved_stages())
    written = run.config_path.read_bytes()
    assert resume_directory(run, config, config.resolved_stages()) == []
    assert run.config_path.read_bytes() == written


def test_its_policy_is_found(run: RunDirectory, config: RunConfig) -> None:
    assert policy_folder(run.root, config.base_dir) == run.models_folder / "train"
    played = named_policy(
        run.root, str(config.base_dir / "config.yaml"), (), command="eval"
    )
    assert played.model.path == str(run.models_folder / "train")
