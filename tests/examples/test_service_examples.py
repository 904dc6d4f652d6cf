"""``examples/api``, ``game`` and ``mcp``: demonstrations show what an episode would see, and the
reward is of the world's own state.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.envs import AsyncEnv, EpisodeView, GymnasiumEnv, Rubric
from agentrl.run.build import LiveObjects, env_spec
from agentrl.tools import close_shared_tools
from agentrl.types import Action, Status, Task, ToolCall, load_object

EXAMPLES = Path(__file__).parents[2] / "examples"
USER_CODE = (
    "api/task.py",
    "game/task.py",
    "gsm8k/prepare.py",
    "hotpotqa/prepare.py",
    "mbpp/prepare.py",
    "mcp/task.py",
)


def load(example: str, name: str) -> Any:
    return load_object(name, EXAMPLES / example)


@pytest.fixture(autouse=True)
def services() -> Iterator[None]:
    yield
    close_shared_tools()


async def environment(example: str, task: Task) -> AsyncEnv:
    """The environment of the configuration, after ``reset``."""
    rl = load_config(EXAMPLES / example / "config.yaml").resolved_stages()[-1]
    env = AsyncEnv(await asyncio.to_thread(env_spec(rl, LiveObjects()).build, task))
    await env.reset(seed=0)
    return env


async def told(env: AsyncEnv, message: dict[str, Any]) -> tuple[list[str], float]:
    """What is answered to an assistant's message, and the step's reward."""
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    result = await env.step(Action(message["content"], message, calls))  # type: ignore[arg-type]
    assert isinstance(result.reward, float)
    return [str(one["content"]) for one in result.observation.messages], result.reward


@pytest.mark.parametrize("path", USER_CODE)
def test_a_users_part_is_at_most_sixty_lines(path: str) -> None:
    """Lines of code: no blank ones, comments and docstrings."""
    text = (EXAMPLES / path).read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            prose |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = [
        line.strip() for at, line in enumerate(text.splitlines(), 1) if at not in prose
    ]
    assert len([line for line in lines if line and not line.startswith("#")]) <= 60


@pytest.mark.parametrize("example", ["api", "game", "mcp"])
def test_no_held_out_task_is_trained_on(example: str) -> None:
    tasks = load(example, "task.py:tasks")
    demonstrations = load(example, "warmup.py:demonstrations")
    held = {task.messages[0]["content"] for task in tasks(0, "held_out", 500)}
    trained = {task.messages[0]["content"] for task in tasks(0, "train", 1000)}
    trained |= {row["messages"][0]["content"] for row in islice(demonstrations(0), 500)}
    assert held.isdisjoint(trained)
    assert list(tasks(3, "held_out", 20)) == list(tasks(3, "held_out", 20))


@pytest.mark.parametrize("example", ["api", "mcp"])
async def test_a_demonstration_has_the_services_own_answers(example: str) -> None:
    played = iter(load("api", "task.py:tasks")(0))  # as the demonstrations do
    shown = 0
    for row in islice(load(example, "warmup.py:demonstrations")(0), 40):
        asked, *messages = row["messages"]
        env = await environment(
            example, next(played) if example == "api" else Task("t", (asked,))
        )
        for message, answer in zip(messages[:-1:2], messages[1::2], strict=True):
            assert (await told(env, message))[0] == [answer["content"]]
            shown += 1
        await env.close()
    assert shown > 30


async def test_a_demonstrated_walk_is_the_games_own() -> None:
    ended = 0
    for row in islice(load("game", "warmup.py:demonstrations")(0, noise=0.3), 30):
        opening, first, *messages = row["messages"]
        board = opening["content"].replace(" ", "").split("\n")
        env = await environment(
            "game", Task("t", (opening,), info={"env_args": {"desc": board}})
        )
        assert first["content"] == "0"
        for message, answer in zip(messages[:-1:2], messages[1::2], strict=True):
            assert (await told(env, message)) == ([answer["content"]], 0.0)
        ended += (await told(env, messages[-1]))[1] == 1.0
        await env.close()
    assert ended > 5


def test_the_solution_of_a_map_ends_at_its_goal() -> None:
    for task in load("game", "task.py:tasks")(0, num_tasks=30):
        env = GymnasiumEnv(
            task,
            env_id="FrozenLake-v1",
            env_args={"is_slippery": False},
            action_names=tuple(load("game", "task.py:MOVES")),
        )
        env.reset(seed=0)
        said = [
            Action(move, {"role": "assistant", "content": move})
            for move in task.info["solution"]
        ]
        results = [asyncio.run(env.step(action)) for action in said]
        assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]
        env.close()


async def test_the_reward_is_the_calendars_state_and_no_words() -> None:
    correct = Rubric([load("api", "task.py:correct")])
    move = next(
        t for t in load("api", "task.py:tasks")(0) if "Move" in t.messages[0]["content"]
    )
    other = await environment("api", move)  # at the same time, in a calendar of its own
    env = await environment("api", move)

    async def reward(of: AsyncEnv, text: str) -> float:
        messages = (*move.messages, {"role": "assistant", "content": text})
        view = EpisodeView(move, messages, (), Status("terminated"), of.env)  # type: ignore[arg-type]
        return (await correct.score(view))["correct"]

    for turn in move.info["solution"][:-1]:
        assert await reward(env, "done") == 0.0
        calls = [ToolCall("c", **call).openai() for call in turn["tool_calls"]]
        await told(env, {"role": "assistant", "content": "", "tool_calls": calls})
    assert await reward(env, "I could not do it") == 1.0
    assert await reward(other, "done") == 0.0
    await env.close()
    await other.close()
