"""Numbers that JSON has no word for, or that no float holds: refused at each entrance by a 400."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.agent_server.served_policy import HI, Serving, serving
from tests.rollouts.bytewise import say

_CALL = {"name": "add", "arguments": {"a": "NUMBER"}}
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": _CALL}],
}
_USED = {"type": "tool_use", "id": "c", "name": "add", "input": {"a": "NUMBER"}}
_RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "3"}
_BLOCKS = [
    HI,
    {"role": "assistant", "content": [_USED]},
    {"role": "user", "content": [_RESULT]},
]
_ITEM = {"type": "function_call", "call_id": "c"} | _CALL
_OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "3"}
_PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "number", "maximum": "NUMBER"}},
}

_BODIES: dict[str, dict[str, dict[str, Any]]] = {
    "chat/completions": {
        "temperature": {"messages": [HI], "temperature": "NUMBER"},
        "metadata": {"messages": [HI], "metadata": {"a": "NUMBER"}},
        "arguments": {
            "messages": [HI, _CALLED, {"role": "tool", "tool_call_id": "c", "content": "3"}]
        },
        "a tool": {
            "messages": [HI],
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": _PARAMETERS}}
            ],
        },
    },
    "responses": {
        "temperature": {"input": "hi", "temperature": "NUMBER"},
        "metadata": {"input": "hi", "metadata": {"a": "NUMBER"}},
        "arguments": {"input": [HI, _ITEM, _OUTPUT]},
    },
    "messages": {
        "temperature": {"messages": [HI], "max_tokens": 9, "temperature": "NUMBER"},
        "metadata": {"messages": [HI], "max_tokens": 9, "metadata": {"a": "NUMBER"}},
        "arguments": {"messages": _BLOCKS, "max_tokens": 9},
    },
    "messages/count_tokens": {"arguments": {"messages": _BLOCKS}},
}


@pytest.fixture
async def served() -> AsyncIterator[Serving]:
    async with serving(lambda request: say("ok")) as endpoint:
        yield endpoint


async def post(
    served: Serving, path: str, body: dict[str, Any], number: str
) -> tuple[int, str]:
    """The status and text of what is answered where ``number`` stands in the body."""
    raw = json.dumps(body).replace('"NUMBER"', number).encode()
    answer = await served.http.post(path, content=raw)
    return answer.status_code, answer.text


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN"])
@pytest.mark.parametrize(
    ("route", "where"),
    [(route, where) for route, bodies in _BODIES.items() for where in bodies],
)
async def test_a_body_with_such_a_number_is_no_json(
    served: Serving, route: str, where: str, number: str
) -> None:
    episode = await served.open()
    for path in (f"/episodes/{episode.id}/v1/{route}", f"/v1/{route}"):
        status, told = await post(served, path, _BODIES[route][where], number)
        assert status == 400, told
        assert f"the body must be JSON ({number} is " in told
    # the episode goes on with what its agent asks next
    await episode.say(HI)
    assert str((await episode.end()).status) == "terminated"


@pytest.mark.parametrize("number", ["1e999", "NaN"])
async def test_no_task_and_no_end_has_one(served: Serving, number: str) -> None:
    episode = await served.open()
    bodies = {
        "/episodes": {"task": {"answer": "NUMBER"}},
        f"/episodes/{episode.id}/end": {"info": {"a": "NUMBER"}},
    }
    for path, body in bodies.items():
        status, told = await post(served, path, body, number)
        assert (status, "the body must be JSON" in told) == (400, True), told
    await episode.end()


@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
async def test_an_integer_beyond_any_float_is_no_temperature(
    served: Serving, route: str
) -> None:
    body = _BODIES[route]["temperature"]
    status, told = await post(served, f"/v1/{route}", body, f"1{'0' * 400}")
    assert status == 400
    assert "temperature must be a number that a float can hold, got 1000" in told
    assert served.engine.requests == []
