"""An environment that no episode can be played in is found before a run is made, with its line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.build import LiveObjects
from agentrl.run.run_setup import make_directory
from tests.run.tiny_run import CONFIG, TASK

ENV = """\
import asyncio
from agentrl.envs import Env
from agentrl.types import Observation, StepResult

SAID = Observation(({"role": "user", "content": "?"},))


class Whole(Env):
    def __init__(self, task):
        self.task = task

    def reset(self, *, seed):
        return SAID

    def step(self, action):
        return StepResult(Observation(), terminated=True)


class NoStep(Env):
    def reset(self, *, seed):
        return SAID


class Five(Whole):
    def step(self, action):
        return SAID, 0.0, True, False, {}


class Raises(Whole):
    def reset(self, *, seed):
        return self.task.nothing


class Waits(Whole):
    async def reset(self, *, seed):
        await asyncio.Event().wait()


class Picky(Whole):
    def step(self, action):
        raise KeyError("no move")


def none(task):
    return {"task": task}


class Old:
    def __init__(self, task):
        raise RuntimeError("no display")
"""

Make = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a run directory for an environment; nothing is trained."""
    (tmp_path / "own.py").write_text(ENV)
    tools = f'env: {{tools: ["{TASK}:add"], describe_tools_in_prompt: false}}'
    assert tools in CONFIG

    def make_run(name: str, *overrides: str) -> None:
        text = CONFIG.replace(tools, f"env: {{entry_point: 'own.py:{name}'}}")
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        config = load_config(
            tmp_path / "config.yaml", [f"run.dir={tmp_path / 'run'}", *overrides]
        )
        make_directory(config, config.resolved_stages(), LiveObjects())

    return make_run


@pytest.mark.parametrize(
    ("name", "told", "line"),
    [
        (
            "NoStep",
            "own.py:NoStep raised for task 'train-0': TypeError",
            "class NoStep(Env):",
        ),
        (
            "Five",
            r"Five breaks .*\[step-type\] step must give a StepResult, got",
            "class Five(Whole):",
        ),
        (
            "Raises",
            "Raises.reset raised AttributeError: .* no",
            "        return self.task.nothing",
        ),
        ("none", "own.py:none must make an agentrl.envs.Env, got dict", "def none(task):"),
        (
            "Old",
            "own.py:Old raised .*: RuntimeError",
            '        raise RuntimeError("no display")',
        ),
    ],
)
def test_a_broken_environment_is_told_with_its_line_before_the_run_is_made(
    make: Make, tmp_path: Path, name: str, told: str, line: str
) -> None:
    number = ENV.splitlines().index(line) + 1
    where = f"tried on task 'train-0' before the first step, {told}.*own\\.py:{number}\\)"
    with pytest.raises(ConfigError, match=f"^stage rl: {where}"):
        make(name)
    assert not (tmp_path / "run").exists()


def test_a_reset_that_takes_longer_than_an_episode_may_is_named(make: Make) -> None:
    told = "Waits took longer than rollout.episode_timeout_s"
    with pytest.raises(ConfigError, match=told):
        make("Waits", "rollout.episode_timeout_s=0.2", "rollout.turn_timeout_s=0.1")


def test_a_step_that_raises_is_a_warning_since_other_actions_may_do(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make("Picky")
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert vars(record)["event"] == "env_raised"
    assert record.getMessage().count("Picky.step raised KeyError: 'no move' (") == 1
    assert (tmp_path / "run").is_dir()


def test_an_environment_that_keeps_its_contract_is_silent(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make("Whole")
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert (tmp_path / "run").is_dir()
