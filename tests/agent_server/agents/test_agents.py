"""Each SDK's agent as it comes plays an episode: it understands the policy's turns, and they stay
one sequence.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.types import Trajectory
from tests.agent_server.agents.conftest import Play
from tests.rollouts.bytewise import call

pytestmark = pytest.mark.agents

LOOK_UP, ANSWER = call("price", fruit="fig"), "43 cents"
CENTS = {"cents": 43}
_UNUSED = {"reasoning", "verbosity"}
IGNORED = {
    "anthropic_sdk": {"cache_control"},
    "anthropic_sdk stream": {"cache_control"},
    "openai_agents plain": _UNUSED,
    "openai_agents streamed": _UNUSED,
    "openai_agents by_id": _UNUSED,
    "openai_agents chat": {"reasoning_effort", "verbosity"},
}


def ended(trajectory: Trajectory) -> tuple[str, float | None, list[int | None]]:
    """How it ended, whether the SDK understood what it should, and which turn each goes on from."""
    assert trajectory.status.kind == "terminated", trajectory.status.detail
    return (
        str(trajectory.status),
        trajectory.reward,
        [turn.parent for turn in trajectory.turns],
    )


@pytest.mark.parametrize(
    "program",
    [
        "openai_sdk",
        "openai_sdk stream",
        "openai_sdk id",
        "openai_sdk stream id",
        "anthropic_sdk",
        "anthropic_sdk stream",
        "openai_agents plain",
        "openai_agents streamed",
        "openai_agents by_id",
        "openai_agents chat",
        "openai_agents forced",
        "langchain_program agent",
        "langchain_program responses",
        "langgraph_program",
        "pydantic_ai_program text",
        "pydantic_ai_program responses",
        "litellm_program chat",
        "litellm_program responses",
        "inspect_program chat",
    ],
)
async def test_an_agent_calls_its_tool_and_answers_in_one_sequence(
    play: Play, program: str
) -> None:
    trajectory = await play(program, [LOOK_UP, ANSWER], ANSWER)
    assert ended(trajectory) == ("terminated", 1.0, [None, 0])
    (record,) = trajectory.turns[0].calls
    assert record.result is not None
    assert record.result.content == "43"
    assert "breaches" not in trajectory.turns[0].info
    # docs/policy-server.md has them
    ignored = IGNORED.get(program, set())
    assert [set(turn.info.get("ignored", ())) for turn in trajectory.turns] == [
        ignored,
        ignored,
    ]


@pytest.mark.parametrize(
    ("program", "turns", "expected"),
    [
        ("openai_agents output", [LOOK_UP, json.dumps(CENTS)], CENTS),
        ("openai_agents output", ["<think>43, I know</think>" + json.dumps(CENTS)], CENTS),
        ("pydantic_ai_program native", [LOOK_UP, json.dumps(CENTS)], CENTS),
        ("pydantic_ai_program output", [LOOK_UP, call("final_result", **CENTS)], CENTS),
        ("langchain_program structured", [json.dumps(CENTS)], CENTS),
        ("langchain_program called", [call("Answer", **CENTS)], CENTS),
        ("langchain_program response_format", [LOOK_UP, call("Answer", **CENTS)], CENTS),
    ],
)
async def test_an_answer_of_a_wanted_shape_is_understood(
    play: Play, program: str, turns: list[str], expected: Any
) -> None:
    trajectory = await play(program, turns, expected)
    assert ended(trajectory) == ("terminated", 1.0, [None, *range(len(turns) - 1)])
    assert all("breaches" not in turn.info for turn in trajectory.turns)


@pytest.mark.parametrize(
    ("program", "turns"),
    [
        ("pydantic_ai_program native", ["three", json.dumps(CENTS)]),
        ("pydantic_ai_program output", ["three", call("final_result", **CENTS)]),
    ],
)
async def test_an_agent_that_is_told_of_a_breach_asks_again(
    play: Play, program: str, turns: list[str]
) -> None:
    trajectory = await play(program, turns, CENTS)
    assert ended(trajectory) == ("terminated", 1.0, [None, 0])
    assert trajectory.turns[0].info["breaches"]
    assert "breaches" not in trajectory.turns[1].info


@pytest.mark.parametrize(
    ("program", "turn"),
    [
        ("openai_agents output", "three"),
        ("openai_agents plain", call("no_such_tool")),
        ("langchain_program structured", "three"),
    ],
)
async def test_an_agent_that_gives_up_at_a_breach_was_ended_by_the_policy(
    play: Play, program: str, turn: str
) -> None:
    trajectory = await play(program, [turn] * 8, CENTS, reward=lambda view: 0.0)
    assert str(trajectory.status) == "truncated(breach)"
    assert trajectory.turns[-1].info["breaches"]


async def test_an_agent_that_gives_up_at_an_answer_that_was_cut_was_ended_by_the_policy(
    play: Play,
) -> None:
    trajectory = await play("openai_agents plain", ["x" * 300], ANSWER, max_turn_tokens=20)
    assert str(trajectory.status) == "truncated(length)"


async def test_agents_that_hand_over_have_a_sequence_each(play: Play) -> None:
    turns = [call("transfer_to_grocer"), LOOK_UP, ANSWER]
    assert ended(await play("openai_agents handoff", turns, ANSWER)) == (
        "terminated",
        1.0,
        [None, None, 1],
    )


async def test_inspect_asks_a_question_of_its_own_before_it_uses_responses(
    play: Play,
) -> None:
    turns = ["hello, world", LOOK_UP, ANSWER]
    assert ended(await play("inspect_program responses", turns, ANSWER)) == (
        "terminated",
        1.0,
        [None, None, 1],
    )


async def test_smolagents_restates_its_history_as_text_so_that_each_step_is_a_sequence(
    play: Play,
) -> None:
    turns = [LOOK_UP, call("final_answer", answer=ANSWER)]
    assert ended(await play("smolagents_program tools", turns, ANSWER)) == (
        "terminated",
        1.0,
        [None, None],
    )


async def test_smolagents_code_agents_run_what_the_policy_writes(play: Play) -> None:
    turns = [
        "Thought: look it up.\n<code>\nprint(price('fig'))\n</code>",
        "Thought: done.\n<code>\nfinal_answer('43 cents')\n</code>",
    ]
    trajectory = await play("smolagents_program code", turns, ANSWER)
    assert ended(trajectory)[:2] == ("terminated", 1.0)
    assert "43" in str(trajectory.turns[1].observed[-1]["content"])


async def test_mini_swe_agent_runs_what_the_policy_asks_for_in_one_sequence(
    play: Play,
) -> None:
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 43 cents"
    turns = [call("bash", command="echo it costs 43"), call("bash", command=done)]
    trajectory = await play("mini_swe_program", turns, ANSWER)
    assert ended(trajectory) == ("terminated", 1.0, [None, 0])
    (record,) = trajectory.turns[0].calls
    assert record.result is not None
    assert "it costs 43" in record.result.content
