"""What the example of an agent by the OpenAI Agents SDK promises about its data and its
configuration.
"""

from __future__ import annotations

import ast
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.config.load import load_config
from agentrl.types import load_object

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_agents"


def load(name: str) -> Any:
    return load_object(name, EXAMPLE)


def test_the_configuration_starts_the_agent_in_the_stage_that_plays_alone() -> None:
    warmup, rl = load_config(EXAMPLE / "config.yaml").resolved_stages()
    assert (warmup.env.agent_command, rl.env.agent_command) == ((), ("python", "agent.py"))


def test_tasks_know_when_the_trains_of_the_agent_leave() -> None:
    trains = load("task.py:TRAINS")
    module = ast.parse((EXAMPLE / "agent.py").read_text(encoding="utf-8"))
    assigned = {
        node.targets[0].id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
    }  # type: ignore[attr-defined]
    assert ast.literal_eval(assigned["TRAINS"]) == trains
    for task in load("task.py:tasks")(3, "train", 50):
        assert (
            task.answer
            == trains[next(city for city in trains if city in task.messages[0]["content"])]
        )


def test_demonstrations_have_faults_and_are_not_all_wrong() -> None:
    trains = load("task.py:TRAINS")
    right = 0
    for row in islice(load("task.py:demonstrations")(0), 200):
        _, question, *_, last = row["messages"]
        right += (
            last["content"]
            == trains[next(city for city in trains if city in question["content"])]
        )
    assert 60 < right < 140
