"""How many calls of a turn are answered, and how many turns in a row may hold none that can be
read.
"""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.envs import Env, EnvSpec
from agentrl.rollouts.tool_calls import bounded, num_bad_turns
from agentrl.tools import HermesParser, tool
from agentrl.types import Action, Message, Observation, SamplingParams, StepResult, Task
from tests.agent_server.served_policy import HI, serving
from tests.rollouts.bytewise import add, call, play, say

ROOM: dict[str, Any] = {
    **{
        "max_turn_tokens": 10**6,
        "max_response_tokens": 10**6,
        "context_tokens": 10**6,
        "max_turns": 20,
    },
    "sampling": SamplingParams(max_new_tokens=10**6),
}
STRAY = "</tool_call>"


def answers(observed: tuple[Message, ...]) -> list[str]:
    return [str(message["content"]) for message in observed if message["role"] == "tool"]


async def test_two_thousand_calls_of_one_turn_are_not_run() -> None:
    ran: list[int] = []

    @tool
    def note(n: int) -> str:
        """Note a number.

        Args:
            n: the number.
        """
        ran.append(n)
        return "noted"

    many = "".join(call("note", n=n) for n in range(2000))
    await play([say(many)], tools=[note], **{**ROOM, "max_turns": 1})

    assert sorted(ran) == list(range(32))


@pytest.mark.parametrize(
    ("written", "left_out"),
    [(call("add", a=1, b=2) * 2000, 1968), (STRAY * 3000, 2968), (STRAY * 33, 1)],
)
async def test_calls_beyond_the_limit_get_one_answer_that_counts_them(
    written: str, left_out: int
) -> None:
    turns = [say(written), say("done")]
    trajectory = await play(turns, tools=[add], **ROOM, max_calls_per_turn=32)

    told = answers(trajectory.turns[1].observed)
    assert len(told) == 33
    assert told[32] == (
        f"Error: {left_out} more calls of this turn were not run: a turn may make 32 "
        "(rollout.max_calls_per_turn); make those that are still needed in the next turn"
    )
    assert sum(f"{left_out} more" in text for text in told) == 1


async def test_as_many_calls_as_a_turn_may_make_are_all_answered() -> None:
    trajectory = await play(
        [say(STRAY * 32), say("done")], tools=[add], **ROOM, max_calls_per_turn=32
    )

    told = answers(trajectory.turns[1].observed)
    assert len(told) == 32
    assert not any("more calls" in text for text in told)


def test_a_message_keeps_its_first_calls_and_problems_in_order() -> None:
    one = call("add", a=1, b=2)
    kept = bounded(HermesParser().parse(one + STRAY + one + STRAY + one), 3)

    assert [made.id for made in kept.tool_calls] == ["call_0", "call_2"]
    assert [(found.id, found.kind) for found in kept.problems] == [
        ("call_1", "unclosed"),
        ("call_3", "too_many"),
    ]
    assert [entry["id"] for entry in kept.message["tool_calls"]] == ["call_0", "call_2"]


async def test_turns_in_a_row_without_a_readable_call_end_the_episode() -> None:
    trajectory = await play([say(STRAY)] * 10, tools=[add], **ROOM, max_bad_turns=3)

    assert str(trajectory.status) == "truncated(bad_calls)"
    assert len(trajectory.turns) == 3
    assert trajectory.reward is not None
    assert num_bad_turns(trajectory.turns, "main") == 3


async def test_a_readable_call_begins_the_count_anew() -> None:
    bad, good = say(STRAY), say(call("add", a=1, b=2) + STRAY)
    trajectory = await play(
        [bad, bad, good, bad, bad, good, say("3")], tools=[add], **ROOM, max_bad_turns=3
    )

    assert str(trajectory.status) == "terminated"
    assert len(trajectory.turns) == 7


async def test_an_environment_that_records_no_calls_is_held_to_it_too() -> None:
    class Deaf(Env):
        def __init__(self, task: Task) -> None: ...

        def reset(self, *, seed: int) -> Observation:
            return Observation(({"role": "user", "content": "hi"},), tools=())

        def step(self, action: Action) -> StepResult:
            return StepResult(Observation(({"role": "user", "content": "what?"},)))

    trajectory = await play([say(STRAY)] * 10, env=EnvSpec(Deaf), **ROOM, max_bad_turns=2)

    assert (str(trajectory.status), len(trajectory.turns)) == ("truncated(bad_calls)", 2)


async def test_an_agent_program_is_given_all_calls_of_a_turn_since_it_runs_them_itself() -> (
    None
):
    async with serving([say(call("add", a=1, b=2) * 2)], max_calls_per_turn=1) as served:
        episode = await served.open()
        made = await episode.say(HI)
    assert len(made.tool_calls) == 2
