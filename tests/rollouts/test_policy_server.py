"""The endpoint as the OpenAI client sees it: what an agent's requests become in the trajectory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from agentrl.envs import EpisodeView, Rubric
from agentrl.errors import EngineError, StoreError
from agentrl.tools import tool
from agentrl.types import Task, Trajectory
from tests.rollouts.bytewise import (
    ASSISTANT,
    END,
    TOOL,
    USER,
    call,
    ids,
    laid_out,
    play,
    say,
    scripted,
)
from tests.rollouts.served_policy import ADD, HI, serving


def answer(message: Any, *results: str) -> list[dict[str, Any]]:
    """The assistant's message as the client dumps it, and what its calls gave."""
    given = zip(message.tool_calls or [], results, strict=True)
    tools = [{"role": "tool", "tool_call_id": made.id, "content": result} for made, result in given]
    return [message.model_dump(exclude_none=True), *tools]


@tool
def add(a: int, b: int) -> str:
    """The sum.

    Args:
        a: one number.
        b: the other.
    """
    return str(a + b)


def assert_true(trajectory: Trajectory, engine: Any) -> None:
    """Every turn's sequence is what the engine was given and made, by the engine's own account of its requests."""
    given = [request.token_ids.tolist() for request in engine.requests]
    for turn in trajectory.turns:
        sequence = trajectory.sequence(turn.index).tolist()
        made = sum(len(segment) for segment in turn.completion)
        assert sequence[: len(sequence) - made] in given


async def test_an_agent_with_tools_leaves_the_tokens_that_an_environment_leaves() -> None:
    script = [say(call("add", a=1, b=2)), say("3")]
    stepped = scripted(script)
    await play(stepped, tools=[add], task=Task("t", (HI,)), env_settings={"announce_tools": True})  # type: ignore[arg-type]
    async with serving(script) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        last = await episode.say(HI, *answer(first, "3"), tools=[ADD])
        trajectory = await episode.end()
    assert last.content == "3"
    assert first.tool_calls[0].function.name == "add"
    assert json.loads(first.tool_calls[0].function.arguments) == {"a": 1, "b": 2}
    assert [r.token_ids.tolist() for r in served.engine.requests] == [r.token_ids.tolist() for r in stepped.requests]
    assert laid_out(trajectory)[1] == [
        ("SCAFFOLD", [TOOL]),
        ("OBSERVATION", ids("3")),
        ("SCAFFOLD", [END, ASSISTANT]),
        ("POLICY", ids("3", END)),
    ]
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert (str(trajectory.status), trajectory.reward, "restarts" in trajectory.info) == ("terminated", 1.0, False)
    record = trajectory.turns[0].calls[0]
    assert record.call is not None
    assert record.result is not None
    assert (record.call.name, record.result.content) == ("add", "3")


async def test_the_text_of_a_turn_is_never_encoded_again() -> None:
    # the ids stand as they were made, whatever an encoder would make of their text
    async with serving([ids("\u00e9 b", END), say("x")]) as served:
        episode = await served.open()
        first = await episode.say(HI)
        await episode.say(HI, *answer(first), HI)
        trajectory = await episode.end()
    assert_true(trajectory, served.engine)
    assert [turn.parent for turn in trajectory.turns] == [None, 0]


async def test_reasoning_that_the_agent_leaves_out_still_stands_in_the_sequence() -> None:
    async with serving([say("<think>hm</think>yes"), say("x")]) as served:
        episode = await served.open()
        first = await episode.say(HI)
        await episode.say(HI, {"role": "assistant", "content": first.content}, HI)
        trajectory = await episode.end()
    assert (first.content, first.reasoning_content) == ("yes", "hm")
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert trajectory.sequence(1).tolist()[5:25] == ids("<think>hm</think>yes")


async def test_reasoning_that_the_agent_changed_is_another_history() -> None:
    async with serving([say("<think>hm</think>yes"), say("x")]) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.say(HI, {"role": "assistant", "content": "yes", "reasoning_content": "other"}, HI)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None]


async def test_parallel_calls_are_answered_together() -> None:
    async with serving([say(call("add", a=1) + call("add", a=2)), say("x")]) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        await episode.say(HI, *answer(first, "one", "two"), tools=[ADD])
        trajectory = await episode.end()
    assert len({made.id for made in first.tool_calls}) == 2
    assert [record.result and record.result.content for record in trajectory.turns[0].calls] == ["one", "two"]
    assert trajectory.turns[1].parent == 0


async def test_ids_of_calls_differ_over_the_whole_episode() -> None:
    async with serving([say(call("add", a=1)), say(call("add", a=1))]) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        second = await episode.say(HI, *answer(first, "1"), tools=[ADD])
    assert first.tool_calls[0].id != second.tool_calls[0].id


@pytest.mark.parametrize("edited", ["question", "answer", "tools"])
async def test_an_edited_history_begins_a_sequence_and_is_counted(edited: str) -> None:
    async with serving([say("one"), say("two")]) as served:
        episode = await served.open()
        first = await episode.say(HI)
        question = {"role": "user", "content": "hello"} if edited == "question" else HI
        words = "uno" if edited == "answer" else first.content
        tools = {"tools": [ADD]} if edited == "tools" else {}
        await episode.say(question, {"role": "assistant", "content": words}, HI, **tools)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None]
    assert trajectory.info["restarts"] == 1
    assert [sample.owned for sample in trajectory.samples()] == [{0}, {1}]


async def test_sequences_of_several_agents_go_on_in_turn() -> None:
    system = {"role": "system", "content": "sub"}
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        main = [HI, *answer(await episode.say(HI))]
        sub = [system, HI, *answer(await episode.say(system, HI))]
        await episode.say(*main, HI)
        await episode.say(*sub, HI)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None, 0, 1]
    assert_true(trajectory, served.engine)
    sessions = [request.session_id for request in served.engine.requests]
    assert sessions[0] == sessions[2] != sessions[1] == sessions[3]


async def test_requests_at_one_time_each_have_a_session() -> None:
    gate = asyncio.Event()
    engine = scripted(lambda request: say("ok"), latency=lambda request: gate.wait())
    async with serving(engine) as served:
        episode = await served.open()
        asked = [asyncio.create_task(episode.say({"role": "user", "content": str(n)})) for n in range(3)]
        while len(engine.requests) < 3:
            await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(*asked)
        trajectory = await episode.end()
    assert len({request.session_id for request in engine.requests}) == 3
    assert len({request.seed for request in engine.requests}) == 3
    assert len(trajectory.turns) == 3
    assert_true(trajectory, engine)


async def test_a_history_asked_twice_branches_and_each_turn_is_trained_once() -> None:
    async with serving([say("one"), say("two")] * 2) as served:
        episode = await served.open()
        opening = [HI, *answer(await episode.say(HI)), HI]
        await asyncio.gather(episode.say(*opening), episode.say(*opening))
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 0]
    owned = [sample.owned for sample in trajectory.samples()]
    assert sorted(turn for sample in owned for turn in sample) == [0, 1, 2]


async def test_a_stream_says_what_a_whole_answer_says() -> None:
    async with serving([say("<think>hm</think>so" + call("add", a=1))]) as served:
        episode = await served.open()
        stream = await episode.client.chat.completions.create(
            model="policy", messages=[HI], tools=[ADD], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        trajectory = await episode.end()
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "so"
    assert next(d.reasoning_content for d in deltas if hasattr(d, "reasoning_content")) == "hm"
    assert [c.function.name for d in deltas for c in d.tool_calls or []] == ["add"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage.completion_tokens == trajectory.num_policy_tokens


async def test_a_call_that_cannot_be_read_is_shown_to_the_agent_and_recorded() -> None:
    async with serving([say('<tool_call>{"name": </tool_call>')]) as served:
        episode = await served.open()
        message = await episode.say(HI, tools=[ADD])
        trajectory = await episode.end()
    assert message.content == '<tool_call>{"name": </tool_call>'
    assert message.tool_calls is None
    problem = trajectory.turns[0].calls[0].problem
    assert problem is not None
    assert problem.kind == "malformed_json"


async def test_the_episode_draws_as_it_was_told_whatever_a_request_asks() -> None:
    async with serving([say("ok")], temperature=0.7) as served:
        episode = await served.open()
        await episode.say(HI, temperature=0.0, top_p=0.5, max_tokens=9)
    sampling = served.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0.7, 1.0, 9)


async def test_a_request_of_no_episode_is_drawn_as_it_asks_and_kept_nowhere() -> None:
    async with serving([say("ok")]) as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        made = await client.chat.completions.create(model="policy", messages=[HI], temperature=0.25)  # type: ignore[list-item]
        await client.close()
    assert made.choices[0].message.content == "ok"
    assert served.engine.requests[0].sampling.temperature == 0.25
    assert served.kept == []


async def test_the_key_names_the_episode_where_the_url_does_not() -> None:
    async with serving([say("one")]) as served:
        episode = await served.open()
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=episode.id, max_retries=0)
        await client.chat.completions.create(model="policy", messages=[HI])  # type: ignore[list-item]
        await client.close()
        trajectory = await episode.end()
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 2}, "n must be 1"),
        ({"logprobs": True}, "logprobs must be False"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"odd": 1}}, "odd is not supported"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_would_change_the_answer_and_is_not_offered_is_refused(settings: dict[str, Any], words: str) -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        with pytest.raises(openai.BadRequestError, match=words):
            await episode.say(HI, **settings)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "assistant", "content": "x"}],
        [{"role": "judge", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "tool", "content": "x"}],
    ],
)
async def test_messages_of_another_shape_are_refused(messages: list[Any]) -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        with pytest.raises(openai.BadRequestError, match="messages"):
            await episode.say(*messages)


async def test_a_conversation_without_room_may_be_shortened() -> None:
    async with serving([say("one"), say("two")], max_response_tokens=20) as served:
        episode = await served.open()
        first = await episode.say(HI)
        with pytest.raises(openai.BadRequestError) as caught:
            await episode.say(HI, *answer(first), {"role": "user", "content": "long" * 10})
        await episode.say({"role": "user", "content": "short"})
        trajectory = await episode.end()
    assert caught.value.code == "context_length_exceeded"
    assert (len(trajectory.turns), str(trajectory.status)) == (2, "terminated")


async def test_a_turn_too_many_truncates_the_episode() -> None:
    async with serving(lambda request: say("ok"), max_turns=2) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.say(HI)
        with pytest.raises(openai.APIStatusError) as caught:
            await episode.say(HI)
        await asyncio.wait_for(ended(served), 20)
    assert caught.value.code == "max_turns"
    assert (str(served.kept[0].status), served.kept[0].reward) == ("truncated(max_turns)", 2.0)


async def ended(served: Any) -> None:
    while not served.kept:
        await asyncio.sleep(0.01)


async def test_an_engine_that_fails_fails_the_episode() -> None:
    engine = scripted([say("ok")], failures={0: EngineError("the engine is gone")})
    async with serving(engine) as served:
        episode = await served.open()
        with pytest.raises(openai.InternalServerError, match="the engine is gone"):
            await episode.say(HI)
        await asyncio.wait_for(ended(served), 20)
    assert (str(served.kept[0].status), served.kept[0].reward) == ("failed(engine)", None)


async def test_a_turn_that_takes_too_long_truncates_the_episode() -> None:
    first = asyncio.Event()

    async def slow(request: Any) -> None:
        if first.is_set():
            await asyncio.Event().wait()
        first.set()

    async with serving(scripted(lambda request: say("ok"), latency=slow), turn_timeout_s=0.5) as served:
        episode = await served.open()
        await episode.say(HI)
        with pytest.raises(openai.APIStatusError):
            await episode.say(HI)
        await asyncio.wait_for(ended(served), 20)
    assert str(served.kept[0].status) == "truncated(turn_timeout)"


async def test_a_request_whose_client_went_away_is_aborted_and_not_recorded() -> None:
    gate = asyncio.Event()
    engine = scripted(lambda request: say("ok"), latency=lambda request: gate.wait())
    async with serving(engine) as served:
        episode = await served.open()
        leaving = asyncio.create_task(episode.say(HI))
        while not engine.requests:
            await asyncio.sleep(0.01)
        leaving.cancel()
        while engine.health().running:
            await asyncio.sleep(0.01)
        gate.set()
        await episode.say(HI)
        trajectory = await episode.end()
    assert len(trajectory.turns) == 1


async def test_silence_ends_an_episode() -> None:
    async with serving([say("ok")], idle_timeout_s=0.3) as served:
        episode = await served.open()
        await episode.say(HI)
        await asyncio.wait_for(ended(served), 20)
        assert (await episode.post("reward", reward=1.0)).status_code in (404, 410)
    assert (str(served.kept[0].status), served.kept[0].reward) == ("truncated(idle_timeout)", 2.0)


async def test_an_episode_that_nobody_played_is_cancelled_by_silence() -> None:
    async with serving([say("ok")], idle_timeout_s=0.1) as served:
        await served.open()
        await asyncio.wait_for(ended(served), 20)
    assert str(served.kept[0].status) == "cancelled(idle_timeout)"


async def test_a_reward_that_came_lies_on_the_last_turn_beside_the_rubric() -> None:
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        first = await episode.say(HI)
        (await episode.post("reward", reward=5.0)).raise_for_status()
        (await episode.post("reward", reward=0.5)).raise_for_status()  # in place of the first
        await episode.say(HI, *answer(first), HI)
        trajectory = await episode.end()
    assert [dict(turn.rewards) for turn in trajectory.turns] == [{}, {"reward": 0.5}]
    assert trajectory.rewards == {"length_reward": 2.0, "step": 0.5}
    assert trajectory.reward == 2.5


async def test_an_episode_without_any_reward_fails_and_is_never_worth_0() -> None:
    async with serving([say("ok")], rubric=Rubric([])) as served:
        episode = await served.open()
        await episode.say(HI)
        trajectory = await episode.end()
    assert (str(trajectory.status), trajectory.reward) == ("failed(reward)", None)


@pytest.mark.parametrize("value", ["much", None, True, 1e999])
async def test_a_reward_is_a_finite_number(value: Any) -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        raw = json.dumps({"reward": value})
        response = await served.http.post(f"/episodes/{episode.id}/reward", content=raw)
    assert response.status_code == 400
    assert "finite number" in response.json()["error"]["message"]


async def test_the_end_says_what_the_episode_came_to() -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open(task={"id": "sum-1", "answer": 3})
        await episode.say(HI)
        outcome = (await episode.post("end", truncated="gave_up")).json()
        again = await episode.post("end")
    assert (outcome["status"], outcome["reward"], outcome["policy_tokens"]) == ("truncated(gave_up)", 2.0, 3)
    assert served.kept[0].task == Task("sum-1", answer=3)
    assert again.status_code == 404


async def test_an_unknown_episode_is_named() -> None:
    async with serving([say("ok")]) as served:
        response = await served.http.post("/episodes/nobody/v1/chat/completions", json={"messages": [HI]})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "no_such_episode")


async def test_health_and_models_say_what_is_served() -> None:
    async with serving(scripted([say("ok")], policy_version=4)) as served:
        await served.open()
        health = (await served.http.get("/health")).json()
        models = (await served.http.get("/v1/models")).json()
    assert health == {"status": "ok", "policy_version": 4, "episodes": 1}
    assert [model["id"] for model in models["data"]] == ["scripted"]


async def test_sessions_are_released_at_the_end() -> None:
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.say({"role": "user", "content": "other"})
        assert served.engine.health().kv_tokens > 0
        await episode.end()
        while served.server.num_episodes:
            await asyncio.sleep(0.01)
    assert served.engine.health().kv_tokens == 0


async def test_the_prompt_of_a_served_episode_is_what_the_agent_sends() -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        await episode.say({"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]})
        trajectory = await episode.end()
    assert laid_out(trajectory)[0][0] == ("PROMPT", ids(USER, "hi", END, ASSISTANT))


async def test_a_turn_in_flight_at_the_end_is_given_up_and_the_rubric_sees_all_that_is_kept() -> None:
    gate = asyncio.Event()
    gate.set()
    engine = scripted(lambda request: say("ok"), latency=lambda request: gate.wait())
    async with serving(engine) as served:
        episode = await served.open()
        await episode.say(HI)
        gate.clear()
        waiting = asyncio.create_task(episode.say({"role": "user", "content": "other"}))
        while not engine.health().running:
            await asyncio.sleep(0.01)
        (await episode.post("end")).raise_for_status()
        trajectory = served.kept[0]
        with pytest.raises(openai.APIStatusError) as caught:
            await waiting
    assert caught.value.status_code == 410
    assert engine.health().running == 0
    assert (len(trajectory.turns), trajectory.reward) == (1, 2.0)


async def test_no_turn_is_made_while_an_episode_that_ran_out_of_time_is_scored() -> None:
    asked = asyncio.Event()
    seen: list[int] = []

    async def slowly_counted(view: EpisodeView) -> float:
        await asyncio.sleep(0.3)
        seen.append(len(view.turns))
        return 1.0

    async def slow(request: Any) -> None:
        if asked.is_set():
            await asyncio.sleep(1.1)
        asked.set()

    engine = scripted(lambda request: say("ok"), latency=slow)
    async with serving(engine, rubric=Rubric([slowly_counted]), episode_timeout_s=1.0) as served:
        episode = await served.open()
        await episode.say(HI)
        with pytest.raises(openai.APIStatusError):
            await episode.say({"role": "user", "content": "other"})
        await asyncio.wait_for(ended(served), 20)
    assert str(served.kept[0].status) == "truncated(episode_timeout)"
    assert seen == [len(served.kept[0].turns)] == [1]


async def test_an_episode_that_cannot_be_kept_is_told_to_the_owner() -> None:
    def full(trajectory: Trajectory) -> None:
        raise StoreError("the disk is full")

    async with serving([say("ok")]) as served:
        served.server._keep = full
        episode = await served.open()
        await episode.say(HI)
        await episode.post("end")
        with pytest.raises(StoreError, match="the disk is full"):
            await asyncio.wait_for(served.server.until_failure(), 20)


async def test_the_urls_of_an_episode_are_those_by_which_its_client_reaches_the_endpoint() -> None:
    async with serving([say("ok")]) as served:
        by_name = served.url.replace("127.0.0.1", "localhost")
        opened = (await served.http.post(f"{by_name}/episodes", json={})).json()
    assert opened["base_url"] == f"{by_name}/episodes/{opened['id']}/v1"
