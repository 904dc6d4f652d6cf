"""What the example of somebody else's agent promises about its data and its configuration."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.config.load import load_config
from agentrl.types import load_object

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_agent"


def load(name: str) -> Any:
    return load_object(name, EXAMPLE)


def test_the_configuration_starts_the_agent_in_the_stage_that_plays_alone() -> None:
    warmup, rl = load_config(EXAMPLE / "config.yaml").resolved_stages()
    assert warmup.env.agent_command == ()
    assert rl.env.agent_command == ("python", "agent.py")
    assert (EXAMPLE / rl.env.agent_command[1]).is_file()


def test_a_model_of_ones_own_skips_the_warm_up() -> None:
    config = load_config(EXAMPLE / "config.yaml", ["model.path=some/model"])
    assert [stage.name for stage in config.resolved_stages()] == ["rl"]


def test_tasks_are_the_same_for_the_same_seed_and_know_the_price() -> None:
    tasks = load("task.py:tasks")
    first = list(tasks(3, "train", 50))
    assert first == list(tasks(3, "train", 50)) != list(tasks(4, "train", 50))
    prices = load("agent.py:PRICES")
    for task in first:
        fruit = next(word for word in prices if word in task.messages[0]["content"])
        assert task.answer == str(prices[fruit])


def test_demonstrations_have_faults_and_are_not_all_wrong() -> None:
    prices = load("agent.py:PRICES")
    rows = list(islice(load("task.py:demonstrations")(0), 200))
    right = 0
    for row in rows:
        question, *_, last = row["messages"]
        fruit = next(word for word in prices if word in question["content"])
        right += last["content"] == str(prices[fruit])
    assert 60 < right < 140


def test_the_agents_tool_answers_in_words_that_the_model_can_act_on() -> None:
    run = load("agent.py:run")
    assert run("price", '{"fruit": "fig"}') == "43"
    assert "no price for stone" in run("price", '{"fruit": "stone"}')
    assert "there is no tool cost" in run("cost", '{"fruit": "fig"}')
