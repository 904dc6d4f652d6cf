"""A run whose configuration names the project's own code, after the project has moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import RunConfig, load_config, to_yaml
from agentrl.run.lifetime.resumption import resume_directory
from agentrl.run.policy_source import named_policy, policy_folder
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
    assert resume_directory(run, config, config.resolved_stages()) == []


def test_its_policy_is_found(run: RunDirectory, config: RunConfig) -> None:
    assert policy_folder(run.root, config.base_dir) == run.models_folder / "train"
    played = named_policy(run.root, str(config.base_dir / "config.yaml"), (), command="eval")
    assert played.model.path == str(run.models_folder / "train")
