"""Who may use a served policy, how much a request may bring, and how many episodes are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from agentrl.rollouts import StagePermits
from tests.agent_server.served_policy import HI, Serving, serving
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import END, call, ids, say

BEARER = {"Authorization": "Bearer s3cret"}
PAGE = "https://evil.example"


@pytest.fixture
async def served() -> AsyncIterator[Serving]:
    async with serving(lambda request: say("ok"), token="s3cret") as one:
        yield one


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer none"}, 401),
        ({"Authorization": "Bearer s3cre"}, 401),
        (BEARER, 200),
        ({**BEARER, "Host": "evil.example"}, 403),
        ({**BEARER, "Host": "10.0.0.5:8000"}, 200),
        ({**BEARER, "Origin": PAGE}, 403),
        ({**BEARER, "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/episodes", "/v1/chat/completions"])
async def test_who_may_ask(
    served: Serving, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await served.http.post(
        path, json={"messages": [HI]} if "v1" in path else {}, headers=headers
    )
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"]["code"] == "refused"
        assert served.engine.requests == []


async def test_an_episodes_own_id_is_its_agents_secret(served: Serving) -> None:
    opened = (await served.http.post("/episodes", json={}, headers=BEARER)).json()
    async with openai.AsyncOpenAI(base_url=opened["base_url"], api_key="any") as client:
        made = await client.chat.completions.create(model="policy", messages=[HI])  # type: ignore[list-item]
    assert made.choices[0].message.content == "ok"
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="s3cret") as client:
        made = await client.chat.completions.create(model="policy", messages=[HI])  # type: ignore[list-item]
    assert made.choices[0].message.content == "ok"
    unknown = await served.http.post("/episodes/1-0-0-x/v1/chat/completions", json={})
    assert unknown.status_code == 401
    assert (
        await served.http.post(f"/episodes/{opened['id']}/end", json={})
    ).status_code == 200


async def test_an_episodes_id_opens_its_own_routes_and_no_other_episode(
    served: Serving,
) -> None:
    one = (await served.http.post("/episodes", json={}, headers=BEARER)).json()["id"]
    key = {"Authorization": f"Bearer {one}"}

    async def statuses() -> list[int]:
        said = {"messages": [HI]}
        asked = [
            await served.http.post("/episodes", json={}, headers=key),
            await served.http.post("/episodes", json={}, headers={"x-api-key": one}),
            await served.http.get("/health", headers=key),
            await served.http.post(
                "/episodes/x/v1/chat/completions", json=said, headers=key
            ),
            await served.http.head("/", headers=key),
            await served.http.get("/v1/models", headers=key),
            await served.http.post("/v1/chat/completions", json=said, headers=key),
            await served.http.post(f"/episodes/{one}/v1/chat/completions", json=said),
        ]
        return [answer.status_code for answer in asked]

    assert await statuses() == [401, 401, 401, 401, 200, 200, 200, 200]
    await served.http.post(f"/episodes/{one}/end", json={})
    assert await statuses() == [401, 401, 401, 401, 200, 200, 410, 410]
    assert served.server.episodes == {}


@pytest.mark.parametrize("messages", [None, 3])
async def test_a_tasks_messages_that_are_no_list_are_refused(
    served: Serving, messages: object
) -> None:
    task = {"messages": messages}
    answer = await served.http.post("/episodes", json={"task": task}, headers=BEARER)
    assert answer.status_code == 400
    assert "task.messages must be a list" in answer.json()["error"]["message"]


async def test_a_body_is_bounded_whether_it_says_its_length_or_not(served: Serving) -> None:
    import agentrl.agent_server.app as app

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(app._MAX_BODY // 2**20 + 1):
            yield b" " * 2**20

    streamed = await served.http.post("/episodes", content=endless(), headers=BEARER)
    assert streamed.status_code == 413
    host, _, port = served.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /episodes HTTP/1.1\r\nHost: {host}\r\nContent-Length: {10**12}\r\n"
    writer.write(f"{head}Authorization: {BEARER['Authorization']}\r\n\r\n".encode())
    # before any of it came
    assert b"413" in await asyncio.wait_for(reader.readline(), DEADLINE_S)
    writer.close()
    deep = await served.http.post("/episodes", content=b"[" * 10_000, headers=BEARER)
    assert (deep.status_code, "nested by more than" in deep.text) == (400, True)


async def test_a_full_house_says_so_and_takes_the_next_when_one_ends() -> None:
    permits = StagePermits(running=2)
    async with serving(lambda request: say("ok"), permits=permits) as served:
        first = await served.open()
        await served.open()
        refused = await served.http.post("/episodes", json={})
        assert refused.status_code == 429
        assert "2 episodes are open" in refused.json()["error"]["message"]
        await first.say(HI)
        await first.end()
        assert (await served.http.post("/episodes", json={})).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_was_cut_behind_a_whole_call_says_length(stream: bool) -> None:
    body = [token for token in say(call("add", a=1, b=2)) if token != END]
    async with serving([body + ids(" and so on and so on")]) as served:
        episode = await served.open()
        settings: dict[str, Any] = {"max_tokens": len(body) + 5, "stream": stream}
        tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
        made = await episode.client.chat.completions.create(
            model="policy",
            messages=[HI],  # type: ignore[list-item]
            tools=tools,  # type: ignore[arg-type]
            **settings,
        )
        if stream:
            reasons = [one.choices[0].finish_reason async for one in made if one.choices]
            assert [reason for reason in reasons if reason] == ["length"]
        else:
            assert made.choices[0].finish_reason == "length"
            assert len(made.choices[0].message.tool_calls) == 1
        await episode.end()
