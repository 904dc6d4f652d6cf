"""The endpoint as the OpenAI client sees it: what may be asked, and how it is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.agent_server.served_policy import HI, answer, serving
from tests.rollouts.bytewise import say, scripted


async def test_the_episode_draws_as_it_was_told_whatever_a_request_asks() -> None:
    async with serving([say("ok")], temperature=0.7) as served:
        episode = await served.open()
        await episode.say(HI, temperature=0.0, top_p=0.5, max_tokens=9)
    sampling = served.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0.7, 1.0, 9)


async def test_a_request_of_no_episode_is_drawn_as_it_asks_and_kept_nowhere() -> None:
    async with serving([say("ok")]) as served:
        client = openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0
        )
        made = await client.chat.completions.create(
            model="policy", messages=[HI], temperature=0.25
        )  # type: ignore[list-item]
        await client.close()
    assert made.choices[0].message.content == "ok"
    assert served.engine.requests[0].sampling.temperature == 0.25
    assert served.kept == []


async def test_the_key_names_the_episode_where_the_url_does_not() -> None:
    async with serving([say("one")]) as served:
        episode = await served.open()
        client = openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key=episode.id, max_retries=0
        )
        await client.chat.completions.create(model="policy", messages=[HI])  # type: ignore[list-item]
        await client.close()
        trajectory = await episode.end()
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 2}, "n must be 1"),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs must be 0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "json_object, or json_schema"),
        ({"extra_body": {"odd": 1}}, "odd is not supported"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_would_change_the_answer_and_is_not_offered_is_refused(
    settings: dict[str, Any], words: str
) -> None:
    async with serving([say("ok")], strict_keys=True) as served:
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


async def test_a_request_whose_client_went_away_is_aborted_and_not_recorded() -> None:
    gate = asyncio.Event()
    engine = scripted(lambda request: say("ok"), latency=lambda request: gate.wait())
    async with serving(engine) as served:
        episode = await served.open()
        leaving = asyncio.create_task(episode.say(HI))
        while not engine.health().running:
            await asyncio.sleep(0.01)
        leaving.cancel()
        while engine.health().running:
            await asyncio.sleep(0.01)
        gate.set()
        await episode.say(HI)
        trajectory = await episode.end()
    assert len(trajectory.turns) == 1


async def test_an_unknown_episode_is_named() -> None:
    async with serving([say("ok")]) as served:
        response = await served.http.post(
            "/episodes/nobody/v1/chat/completions", json={"messages": [HI]}
        )
    assert (response.status_code, response.json()["error"]["code"]) == (
        404,
        "no_such_episode",
    )


async def test_health_and_models_say_what_is_served() -> None:
    async with serving(scripted([say("ok")], policy_version=4)) as served:
        await served.open()
        health = (await served.http.get("/health")).json()
        models = (await served.http.get("/v1/models")).json()
    assert health == {"status": "ok", "policy_version": 4, "episodes": 1}
    assert [model["id"] for model in models["data"]] == ["scripted"]


async def test_the_urls_of_an_episode_are_those_by_which_its_client_reaches_the_endpoint() -> (
    None
):
    async with serving([say("ok")]) as served:
        by_name = served.url.replace("127.0.0.1", "localhost")
        opened = (await served.http.post(f"{by_name}/episodes", json={})).json()
    assert opened["base_url"] == f"{by_name}/episodes/{opened['id']}/v1"
