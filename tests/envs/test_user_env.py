"""A user hears what is said to it and nothing else, and nothing is played twice for its sake."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs import EnvSpec, ToolEnv, UserEnv, check_env
from agentrl.errors import DataError, EnvError
from agentrl.tools import ToolOutput, tool
from agentrl.types import Action, CallProblem, Message, Task, ToolCall
from tests.llm.odd_server import Reply, failed, odd_server, said
from tests.rollouts.bytewise import call, play, say

HELLO = Task(
    "t", ({"role": "system", "content": "S3CRET"}, {"role": "user", "content": "Hello."})
)
SECRET = "S3CRET"


@tool
def look() -> str:
    """Look something up."""
    return SECRET


@tool
def leave() -> ToolOutput:
    """Leave."""
    return ToolOutput("bye", end=True)


def spoken(text: str, reasoning: str = "") -> Action:
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    return Action(text, message)


class Listening:
    """A user that keeps what it heard."""

    def __init__(self, *lines: str | None) -> None:
        self.lines = lines
        self.heard: list[tuple[Message, ...]] = []

    def reply(self, conversation: Any) -> str | None:
        self.heard.append(conversation)
        return self.lines[len(self.heard) - 1]


async def test_a_scripted_user_says_its_lines_and_ends() -> None:
    env = UserEnv(HELLO, user=["One.", "Two."])
    opening = await env.reset(seed=0)
    assert [m["content"] for m in opening.messages] == [SECRET, "Hello."]
    first = await env.step(spoken("a"))
    assert first.observation.messages == ({"role": "user", "content": "One."},)
    assert not (await env.step(spoken("b"))).terminated
    assert (await env.step(spoken("c"))).terminated


async def test_a_user_opens_a_conversation_that_the_task_does_not() -> None:
    env = UserEnv(Task("t"), user=["One."], system_prompt="Be brief.")
    opening = await env.reset(seed=0)
    assert [m["content"] for m in opening.messages] == ["Be brief.", "One."]
    assert (await env.step(spoken("a"))).terminated


async def test_the_users_lines_may_come_with_the_task() -> None:
    check_env(UserEnv, Task("t", info={"user": ["One.", "Two."]}))


async def test_calls_are_answered_by_tools_and_not_told_to_the_user() -> None:
    user = Listening("Fine.")
    env = UserEnv(HELLO, user=user, tools=[look])
    await env.reset(seed=0)
    result = await env.step(
        Action("", {"role": "assistant", "content": ""}, (ToolCall("call_0", "look", {}),))
    )
    assert result.observation.messages[0]["content"] == SECRET
    assert user.heard == []
    await env.step(spoken("Done."))
    assert [m["content"] for m in user.heard[0]] == ["Hello.", "Done."]


async def test_a_tool_ends_the_conversation_unless_the_user_alone_may() -> None:
    action = Action(
        "", {"role": "assistant", "content": ""}, (ToolCall("call_0", "leave", {}),)
    )
    for alone in (False, True):
        env = UserEnv(HELLO, user=["One."], tools=[leave], only_user_ends=alone)
        await env.reset(seed=0)
        result = await env.step(action)
        assert result.terminated != alone
        assert result.observation.messages[0]["content"] == "bye"
        if alone:
            assert not (await env.step(spoken("a"))).terminated
            assert (await env.step(spoken("b"))).terminated


async def test_a_users_plain_reply_runs_beside_the_event_loop() -> None:
    seen: list[threading.Thread] = []

    class Thinks:
        def reply(self, conversation: Any) -> str:
            seen.append(threading.current_thread())
            return "Go on."

    env = UserEnv(HELLO, user=Thinks())
    await env.reset(seed=0)
    await env.step(spoken("a"))
    assert len(seen) == 1
    assert threading.current_thread() not in seen


async def test_a_message_that_was_cut_by_its_length_is_not_said_and_ends_the_episode() -> (
    None
):
    user = Listening("Fine.")
    env = UserEnv(HELLO, user=user, tools=[look])
    await env.reset(seed=0)
    result = await env.step(replace(spoken("I was about to"), finish_reason="length"))
    assert (result.truncated, result.info["reason"]) == (True, "length")
    assert user.heard == []


TURN = st.sampled_from(
    ("thought", "open thought", "late thought", "call", "problem", "both")
)


def turn_of(kind: str, number: int) -> Action:
    """A turn of the assistant that holds the secret where no user may see it."""
    text = f"Words {number}."
    tool_call = ToolCall("call_0", "look", {})
    problem = CallProblem("call_0", "malformed_json", SECRET, SECRET)
    empty: Message = {"role": "assistant", "content": SECRET}
    match kind:
        case "thought":
            return spoken(f"<think>{SECRET}</think>{text}")
        case "open thought":
            return spoken(f"{text}<think>{SECRET}")
        case "late thought":
            return spoken(f"{SECRET}</think>{text}", reasoning=SECRET)
        case "call":
            return Action(SECRET, empty, (tool_call,))
        case "problem":
            return Action(SECRET, empty, (), (problem,))
    return Action(SECRET, empty, (tool_call,), (problem,))


@settings(max_examples=60, deadline=None)
@given(st.lists(TURN, min_size=1, max_size=8))
async def test_planted_secrets_never_reach_the_user(kinds: list[str]) -> None:
    user = Listening(*["Go on."] * 9)
    env = UserEnv(HELLO, user=user, tools=[look])
    await env.reset(seed=0)
    for number, kind in enumerate(kinds):
        await env.step(turn_of(kind, number))
    await env.step(spoken("Bye."))
    assert SECRET not in json.dumps(user.heard)
    spoke = [f"Words {n}." for n, kind in enumerate(kinds) if "thought" in kind]
    answers = [m["content"] for m in user.heard[-1] if m["role"] == "assistant"]
    assert answers == [*spoke, "Bye."]


def played_by(server: Any, **more: Any) -> EnvSpec:
    given = {"base_url": server.url, "model": "m", "max_retries": 2, "max_backoff_s": 0.01}
    return EnvSpec(UserEnv, {"server": given, "tools": [look], **more})


WISHES = Task("t", ({"role": "user", "content": "Hello."},), info={"user": "You want tea."})


async def test_a_models_user_is_told_its_part_and_the_spoken_words_alone() -> None:
    async with odd_server(said("<think>hm</think>Tea!"), said("Thanks. [END]")) as server:
        trajectory = await play(
            [say(call("look")), say("<think>tea?</think>Yes?"), say("Here.")],
            task=WISHES,
            env=played_by(server),
        )
    assert str(trajectory.status) == "terminated"
    assert [m["content"] for m in trajectory.turns[2].observed] == ["Tea!"]
    first, second = ([m["content"] for m in body["messages"]] for body in server.asked)
    assert "You want tea." in first[0]
    assert first[1:] == ["The conversation begins.", "Hello.", "Yes?"]
    assert second == [*first, "Tea!", "Here."]
    roles = [m["role"] for m in server.asked[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]


async def test_retries_of_the_users_model_play_no_turn_twice() -> None:
    replies = [failed(503), said("One."), failed(429), said("Two."), said("[END]")]
    async with odd_server(*replies) as server:
        trajectory = await play(
            [say("a"), say("b"), say("c")], task=WISHES, env=played_by(server)
        )
    assert [turn.text for turn in trajectory.turns] == ["a", "b", "c"]
    assert server.asked[0] == server.asked[1]
    assert server.asked[2] == server.asked[3]
    told = [m["content"] for m in server.asked[-1]["messages"][2:]]
    assert told == ["Hello.", "a", "One.", "b", "Two.", "c"]


@pytest.mark.parametrize(
    "reply", [failed(500), said(""), said("<think>and so on")], ids=str
)
async def test_a_failure_of_the_users_server_is_no_reward(reply: Reply) -> None:
    async with odd_server(reply) as server:
        trajectory = await play([say("a")], task=WISHES, env=played_by(server))
    assert (str(trajectory.status), trajectory.reward) == ("failed(engine)", None)
    assert trajectory.info["retryable"]


def test_a_user_without_a_player_or_of_a_wrong_kind_is_named() -> None:
    with pytest.raises(EnvError, match=r"nobody plays it; name a model by UserEnv\.server"):
        UserEnv(WISHES)
    with pytest.raises(
        DataError, match=r"task 't': the user must be a list of lines, or text"
    ):
        UserEnv(Task("t", WISHES.messages, info={"user": {"a": 1}}))


async def test_a_task_is_offered_the_tools_that_it_names() -> None:
    named = Task("t", WISHES.messages, info={"tools": ["leave"]})
    env = ToolEnv(named, tools=[look, leave])
    assert [spec.name for spec in (await env.reset(seed=0)).tools or ()] == ["leave"]
    action = Action(
        "", {"role": "assistant", "content": ""}, (ToolCall("call_0", "look", {}),)
    )
    result = await env.step(action)
    assert result.info["tool_errors"] == {"unknown_tool": 1}
    with pytest.raises(
        DataError, match=r"task 't': info\['tools'\] names 'cook', which is not"
    ):
        ToolEnv(Task("t", WISHES.messages, info={"tools": ["cook"]}), tools=[look])
    with pytest.raises(
        DataError, match=r"task 't': info\['tools'\] must be a list of names"
    ):
        ToolEnv(Task("t", WISHES.messages, info={"tools": "look"}), tools=[look])
