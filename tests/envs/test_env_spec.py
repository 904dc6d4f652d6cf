"""An environment as data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import EnvSpec, ToolEnv
from agentrl.errors import ConfigError, EnvError
from agentrl.sandbox import SandboxPool, SandboxSpec
from agentrl.types import Task

TASK = Task("t-1", ({"role": "user", "content": "Hi."},))

SOURCE = """
from agentrl.envs import ToolEnv

def make(task, prompt="none"):
    return ToolEnv(task, system_prompt=prompt)
"""


def no_env(task: Task) -> Any:
    return "not an env"


def make_with(task: Task, sandbox: Any) -> ToolEnv:
    env = ToolEnv(task, sandbox=sandbox)
    env.given = sandbox  # type: ignore[attr-defined]
    return env


async def test_a_factory_named_by_text_is_built_after_a_trip_through_pickle(
    tmp_path: Path,
) -> None:
    (tmp_path / "world.py").write_text(SOURCE)
    spec = EnvSpec("world.py:make", {"prompt": "Be kind."}, base_dir=str(tmp_path))
    env = pickle.loads(pickle.dumps(spec)).build(TASK)

    assert (await env.reset(seed=1)).messages[0]["content"] == "Be kind."


def test_a_name_that_leads_nowhere_is_a_configuration_error() -> None:
    with pytest.raises(
        ConfigError, match=r"agentrl\.envs has no 'ToolEnf'; did you mean 'ToolEnv'"
    ):
        EnvSpec("agentrl.envs:ToolEnf").build(TASK)


def test_something_else_than_an_env_is_refused() -> None:
    with pytest.raises(EnvError, match=r"no_env must make an agentrl\.envs\.Env, got str"):
        EnvSpec(no_env).build(TASK)


def test_a_setting_that_the_factory_does_not_take_is_told_with_the_task() -> None:
    with pytest.raises(
        EnvError, match=r"ToolEnv raised for task 't-1': TypeError: .*'colour'"
    ):
        EnvSpec(ToolEnv, {"colour": 1}).build(TASK)


def test_the_sandbox_is_passed_as_a_spec_or_as_the_hosts_pool() -> None:
    sandbox = SandboxSpec(backend="unsafe")
    pool = SandboxPool(sandbox, max_running=1)
    spec = EnvSpec(make_with, sandbox=sandbox)

    assert spec.build(TASK).given is sandbox  # type: ignore[attr-defined]
    assert spec.build(TASK, sandboxes=pool).given is pool  # type: ignore[attr-defined]


def test_without_a_sandbox_the_factory_is_not_asked_to_take_one() -> None:
    pool = SandboxPool(SandboxSpec(backend="unsafe"), max_running=1)

    assert isinstance(
        EnvSpec(lambda task: ToolEnv(task)).build(TASK, sandboxes=pool), ToolEnv
    )
