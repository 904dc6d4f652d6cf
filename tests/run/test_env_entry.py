"""What an environment of one's own is given of the configuration, and what it is not given in
silence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.envs import EnvSpec
from agentrl.errors import ConfigError
from agentrl.run.build import LiveObjects, env_spec
from agentrl.types import Task

Write = Callable[..., Path]

MODULE = """
from agentrl.envs import Env, ToolEnv
from agentrl.tools import tool

@tool
def look(place: str) -> str:
    "Looks at a place."
    return place

class Own(ToolEnv):
    "With all that ToolEnv takes."

class Bare(Env):
    "With nothing but its task."
    def __init__(self, task): ...
"""


@pytest.fixture
def spec(write: Write, tmp_path: Path) -> Callable[..., EnvSpec]:
    (tmp_path / "own.py").write_text(MODULE)

    def make(text: str, *, with_tools: bool = True) -> EnvSpec:
        (stage,) = load_config(write(text)).resolved_stages()
        return env_spec(stage, LiveObjects(), with_tools=with_tools)

    return make


async def test_a_subclass_of_tool_env_is_given_tools_and_prompt(
    spec: Callable[..., EnvSpec],
) -> None:
    text = "env: {entry_point: 'own.py:Own', tools: ['own.py:look'], system_prompt: Look!}\nrollout: {tool_timeout_s: 7}"  # noqa: E501
    built = spec(text)
    assert built.kwargs["tool_deadline_s"] == 7
    observation = await built.build(
        Task("1", ({"role": "user", "content": "Where?"},))
    ).reset(seed=0)
    assert [tool.name for tool in observation.tools or ()] == ["look"]
    assert [message["content"] for message in observation.messages] == ["Look!", "Where?"]
    assert spec(text, with_tools=False).kwargs["tools"] == []


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("tools: ['own.py:look']", "env.tools"),
        ("system_prompt: Look!", "env.system_prompt"),
    ],
)
def test_a_setting_that_an_environment_does_not_take_is_refused(
    spec: Callable[..., EnvSpec], setting: str, named: str
) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"{named} would do nothing, since Bare has no parameter '\w+'; give it one",
    ):
        spec(f"env: {{entry_point: 'own.py:Bare', {setting}}}")


def test_without_such_settings_it_is_given_its_own_arguments_alone(
    spec: Callable[..., EnvSpec],
) -> None:
    assert spec("env: {entry_point: 'own.py:Bare', args: {size: 3}}").kwargs == {"size": 3}
    assert (
        spec("env: {entry_point: 'own.py:Bare', describe_tools_in_prompt: false}").kwargs
        == {}
    )
    assert (
        spec("env: {entry_point: 'own.py:Own', describe_tools_in_prompt: false}").kwargs[
            "describe_tools_in_prompt"
        ]
        is False
    )
