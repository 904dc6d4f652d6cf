"""A ``gymnasium.Env`` is played in messages, and what it says counts as it is."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from agentrl.envs import EnvSpec, GymnasiumEnv, TurnLimit, check_env
from agentrl.errors import ConfigError
from agentrl.types import Action, Task, ToolCall
from tests.kit.episodes import spoken

LAKE = {
    "env_id": "FrozenLake-v1",
    "env_args": {"is_slippery": False, "render_mode": "ansi"},
}
NAMES = ["left", "down", "right", "up"]
TASK = Task("t", ({"role": "system", "content": "Play."},))


class Echo(gymnasium.Env[Any, Any]):
    """Texts and a number in, a dict out."""

    observation_space = spaces.Dict({"said": spaces.Text(20), "n": spaces.Discrete(9)})
    action_space = spaces.Dict({"say": spaces.Text(20), "n": spaces.Discrete(3)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"said": "hello", "n": 0}, {}

    def step(self, action: Any) -> Any:
        return {"said": action["say"], "n": action["n"]}, 0.5, False, True, {}


async def test_the_way_over_the_lake_is_rewarded_at_its_end() -> None:
    env = GymnasiumEnv(TASK, **LAKE, action_names=NAMES)
    opening = env.reset(seed=0)
    assert [m["content"] for m in opening.messages] == ["Play.", "0"]
    results = [
        await env.step(spoken(way))
        for way in ["down", "down", "right", "right", "down", "right"]
    ]
    assert [m["content"] for m in results[0].observation.messages] == ["4"]
    assert [r.reward for r in results] == [0, 0, 0, 0, 0, 1]
    assert [r.terminated for r in results] == [False] * 5 + [True]
    env.close()


@pytest.mark.parametrize("text", ["", "7", "north", "left left", "9" * 5000])
async def test_an_invalid_action_is_told_and_costs_a_turn(text: str) -> None:
    env = TurnLimit(GymnasiumEnv(TASK, **LAKE, action_names=NAMES), 1)
    await env.reset(seed=0)
    result = await env.step(spoken(text))
    assert "one of: left, down, right, up" in str(result.observation.messages)
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, True)
    assert result.info == {"invalid_action": True, "reason": "max_turns"}


async def test_thoughts_are_no_part_of_the_action() -> None:
    env = GymnasiumEnv(TASK, **LAKE, action_names=NAMES)
    env.reset(seed=0)
    result = await env.step(spoken("<think>right is a hole</think>\n\ndown"))
    assert [m["content"] for m in result.observation.messages] == ["4"]


async def test_one_call_of_the_tool_acts() -> None:
    env = GymnasiumEnv(TASK, **LAKE, by_tool=True)
    env.reset(seed=0)
    call = ToolCall("c", "act", {"action": "1"})
    result = await env.step(Action("", {"role": "assistant", "content": ""}, (call,)))
    assert [m["content"] for m in result.observation.messages] == ["Done.", "4"]


async def test_dicts_are_json_both_ways() -> None:
    env = GymnasiumEnv(TASK, env_id=f"{__file__}:Echo")
    assert env.reset(seed=0).messages[-1]["content"] == '{"said": "hello", "n": 0}'
    assert (await env.step(spoken('{"say": "a"}'))).info == {"invalid_action": True}
    result = await env.step(spoken('{"say": "hi", "n": 2}'))
    assert result.observation.messages[-1]["content"] == '{"said": "hi", "n": 2}'
    assert (result.reward, result.truncated) == (0.5, True)


@pytest.mark.parametrize("by_tool", [False, True])
@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Blackjack-v1"])
def test_the_contract_is_kept(env_id: str, by_tool: bool) -> None:
    check_env(EnvSpec(GymnasiumEnv, {"env_id": env_id, "by_tool": by_tool}), TASK)


def test_spaces_and_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="got Box"):
        GymnasiumEnv(TASK, env_id="CartPole-v1")
    with pytest.raises(ConfigError, match="each of the 4 actions"):
        GymnasiumEnv(TASK, **LAKE, action_names=["left"])
