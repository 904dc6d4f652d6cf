"""Whose turn a request is: the key of an open episode, of one that has ended, of none, and one that
is mistyped.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from agentrl.agent_server import PolicyServer, ServedDriver
from agentrl.errors import EngineError
from agentrl.rollouts import run_episode
from tests.agent_server.served_policy import HI, Serving, ended, serving
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import KEY, TASK, context_of, rollout_spec, say, scripted


async def ask_with_key(served: Serving, key: str, *, max_retries: int = 0) -> Any:
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key=key, max_retries=max_retries
    ) as client:
        return await client.chat.completions.create(model="policy", messages=[HI])  # type: ignore[list-item]


async def test_a_mistyped_episode_id_as_key_is_refused_and_nothing_is_sampled() -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        with pytest.raises(openai.AuthenticationError, match="no open episode"):
            await ask_with_key(served, f"{episode.id}x")
        assert served.engine.requests == []


async def test_the_key_of_an_episode_that_has_ended_is_refused_with_how_it_ended() -> None:
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.end(truncated="gave_up")
        with pytest.raises(openai.APIStatusError, match=r"truncated\(gave_up\)") as caught:
            await ask_with_key(served, episode.id)
    assert (caught.value.status_code, caught.value.code) == (410, "episode_over")
    assert len(served.engine.requests) == 1


async def test_the_url_of_an_episode_that_has_ended_answers_410_too() -> None:
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.end()
        asked = await episode.post("v1/chat/completions", messages=[HI])
        rewarded = await episode.post("reward", reward=1.0)
    assert (asked.status_code, rewarded.status_code) == (410, 410)
    assert "has ended: terminated" in asked.json()["error"]["message"]


@pytest.mark.parametrize("key", ["none", "EMPTY"])
async def test_the_keys_of_no_episode_are_served_and_kept_nowhere(key: str) -> None:
    async with serving([say("ok")]) as served:
        assert (await ask_with_key(served, key)).choices[0].message.content == "ok"
        assert served.kept == []


async def test_a_request_without_a_key_is_of_no_episode() -> None:
    async with serving([say("ok")]) as served:
        response = await served.http.post("/v1/chat/completions", json={"messages": [HI]})
    assert response.json()["choices"][0]["message"]["content"] == "ok"


async def test_a_client_that_retries_is_told_the_cause_at_once() -> None:
    engine = scripted([say("ok")], failures={0: EngineError("the engine is gone")})
    async with serving(engine) as served:
        episode = await served.open()
        with pytest.raises(openai.InternalServerError, match="the engine is gone"):
            await ask_with_key(served, episode.id, max_retries=3)


async def test_a_client_that_asks_again_whatever_it_is_told_sees_the_cause() -> None:
    engine = scripted([say("ok")], failures={0: EngineError("the engine is gone")})
    async with serving(engine) as served:
        episode = await served.open()
        key = {"Authorization": f"Bearer {episode.id}"}
        first = await served.http.post(
            "/v1/chat/completions", json={"messages": [HI]}, headers=key
        )
        await asyncio.wait_for(ended(served), DEADLINE_S)
        again = await served.http.post(
            "/v1/chat/completions", json={"messages": [HI]}, headers=key
        )
    assert (first.status_code, again.status_code) == (503, 410)
    assert "the engine is gone" in again.json()["error"]["message"]


async def test_an_episode_that_ran_out_of_time_says_so_to_who_asks_again() -> None:
    async with serving(lambda request: say("ok"), episode_timeout_s=4.0) as served:
        episode = await served.open()
        await episode.say(HI)
        await asyncio.wait_for(ended(served), DEADLINE_S)
        with pytest.raises(openai.APIStatusError, match="deadline") as caught:
            await episode.say(HI)
    assert caught.value.status_code == 410


@pytest.mark.parametrize("body", [{}, {"reward": 1.0}, {"truncated": "gave_up"}])
async def test_an_episode_that_never_asked_fails_however_it_is_ended(
    body: dict[str, Any],
) -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        outcome = (await episode.post("end", **body)).json()
    assert (outcome["status"], outcome["reward"]) == ("failed(env)", None)


async def test_the_endpoint_of_a_training_run_tells_an_ended_key_from_an_unknown_one() -> (
    None
):
    spec = rollout_spec()
    parts = context_of(spec, scripted(lambda request: say("ok")))
    server = PolicyServer(parts.engine)
    drivers: list[ServedDriver] = []

    class Attended:
        name = "attended"

        def driver(self, turns: Any) -> ServedDriver:
            drivers.append(ServedDriver(turns, server))
            return drivers[0]

    playing = asyncio.create_task(run_episode(parts, TASK, KEY, env=Attended()))
    while not drivers or not drivers[0].url:
        await asyncio.sleep(0.01)
    url, key = drivers[0].url.partition("/episodes")[0], drivers[0].episode_id
    statuses = []
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:

        async def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (
                await http.post(
                    "/v1/chat/completions", json={"messages": [HI]}, headers=headers
                )
            ).status_code

        statuses.append(await status(key))
        drivers[0].episode.finish()
        await playing
        statuses += [await status(key), await status("none"), await status(f"{key}x")]
    await server.close()
    assert statuses == [200, 410, 401, 401]
