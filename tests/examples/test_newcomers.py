"""Projects as a newcomer would write them: a text maze, a tool with state. Their promises, and that
they train.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.envs import EnvSpec, check_env
from agentrl.run.build import LiveObjects, env_spec
from agentrl.run.trainer import Trainer
from agentrl.types import Action, Task, ToolCall, load_object
from tests.kit.episodes import spoken

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(example: str, name: str) -> Any:
    return load_object(f"task.py:{name}", EXAMPLES / example)


@pytest.mark.parametrize("example", ["maze", "till"])
def test_tasks_are_the_same_for_the_same_seed_and_have_ids_of_their_own(
    example: str,
) -> None:
    tasks = load(example, "tasks")
    first = list(tasks(3, num_tasks=50))
    assert first == list(tasks(3, num_tasks=50)) != list(tasks(4, num_tasks=50))
    assert len({task.id for task in first}) == 50


# --- the maze


def test_the_maze_shows_its_grid_after_each_move() -> None:
    walls = [[[0, 0], [0, 1]], [[1, 0], [2, 0]]]
    env = load("maze", "Maze")(
        Task("m", info={"start": [0, 0], "exit": [3, 3], "walls": walls})
    )
    env.reset(seed=0)
    env.step(Action("east", {"role": "assistant", "content": "east"}))
    assert env.snapshot() == {
        "form": "grid",
        "cells": [
            ". @#. .",
            "#+ + + ",
            ". . . .",
            " + + + ",
            ". . . .",
            " + + + ",
            ". . . X",
        ],
    }


def test_the_maze_keeps_the_contract_of_an_environment() -> None:
    check_env(
        EnvSpec(load("maze", "Maze"), {"max_moves": 3}), next(load("maze", "tasks")(0))
    )


def test_the_way_out_ends_at_the_exit_with_the_reward() -> None:
    maze, way_out = load("maze", "Maze"), load("maze", "way_out")
    for task in load("maze", "tasks")(0, num_tasks=30):
        env = maze(task)
        assert env.reset(seed=0).messages
        way = way_out(env.place, env.exit, env.walls)
        results = [env.step(spoken(word)) for word in way]
        assert [result.reward for result in results] == [0.0] * (len(way) - 1) + [1.0]
        assert [result.terminated for result in results][-1]


def test_a_wall_and_a_word_that_is_none_cost_a_move() -> None:
    walls = [[[0, 0], [1, 0]]]
    env = load("maze", "Maze")(
        Task("m", info={"start": [0, 0], "exit": [3, 3], "walls": walls}), max_moves=3
    )
    assert env.reset(seed=0).messages[0]["content"] == "Go to 3 3. At 0 0: south"
    assert (
        env.step(spoken("east")).observation.messages[0]["content"]
        == "A wall. At 0 0: south"
    )
    assert (
        env.step(spoken("up"))
        .observation.messages[0]["content"]
        .startswith("Say north, east, south or west.")
    )
    last = env.step(spoken("South"))
    assert (last.truncated, last.info["reason"], env.place) == (True, "max_moves", (0, 1))


# --- the till


async def test_each_episode_has_a_till_of_its_own() -> None:
    rl = load_config(EXAMPLES / "till" / "config.yaml").resolved_stages()[-1]
    spec = env_spec(rl, LiveObjects())
    task = next(load("till", "tasks")(0))

    async def ring(env: Any, price: int) -> str:
        call = ToolCall("call_0", "ring", {"price": price})
        message: Any = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
        return str(
            (await env.step(Action("", message, (call,)))).observation.messages[0][
                "content"
            ]
        )

    one, other = spec.build(task), spec.build(task)
    assert [await ring(one, 5), await ring(other, 7), await ring(one, 5)] == [
        "105",
        "107",
        "110",
    ]


def test_the_till_that_the_tasks_count_from_is_the_one_that_they_get() -> None:
    warmup, rl = load_config(EXAMPLES / "till" / "config.yaml").resolved_stages()
    (tool,) = rl.env.tools
    assert tool.args == rl.data.args == warmup.data.args == {"deposit": 100}
    assert rl.eval.sets["totals"].args["deposit"] == 100


def test_half_of_the_demonstrations_are_right() -> None:
    rows = list(islice(load("till", "demonstrations")(0), 300))
    right = 0
    for row in rows:
        question, *_, last = row["messages"]
        right += last["content"] == str(
            sum(int(w) for w in question["content"].split() if w.isdigit())
        )
    assert 120 < right < 190


# --- both learn: a figure of training; each commit takes steps of both (test_shipped_configs.py)


@pytest.mark.slow
@pytest.mark.tooling
@pytest.mark.parametrize(("example", "name"), [("maze", "mazes"), ("till", "totals")])
def test_the_policy_learns(example: str, name: str, tmp_path: Path) -> None:
    settings = [f"run.dir={tmp_path / 'run'}", "placement.mode=inline", "train.steps=15"]
    with Trainer(load_config(EXAMPLES / example / "config.yaml", settings)) as trainer:
        trainer.train()
    result = json.loads((tmp_path / "run" / "summary.json").read_text())["eval"][name]
    assert result["after"]["sampled"] >= result["before"]["sampled"] + 0.1
