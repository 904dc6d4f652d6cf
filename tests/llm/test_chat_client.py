"""The client against servers that answer well, badly, late, half, or not at all."""

from __future__ import annotations

import asyncio
import pickle
import time
from email.utils import formatdate
from typing import Any

import pytest

from agentrl.errors import ConfigError, ServerError
from agentrl.llm import ChatClient, ChatServerSpec, ChatUsage
from agentrl.types import Message, ToolSpec
from tests.llm.odd_server import OddServer, Reply, failed, odd_server, said

HELLO: list[Message] = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def client_of(server: OddServer, **settings: Any) -> ChatClient:
    quick: dict[str, Any] = {"max_backoff_s": 0.01, "timeout_s": 20.0}
    return ChatClient(ChatServerSpec(server.url, "m", **quick | settings))


async def refusal(server: OddServer, **settings: Any) -> ServerError:
    client = client_of(server, **settings)
    with pytest.raises(ServerError) as caught:
        await client.chat(HELLO)
    await client.close()
    return caught.value


async def test_a_request_says_what_was_asked_and_its_answer_what_was_said() -> None:
    tool = ToolSpec("add", "adds", {"type": "object"})
    async with odd_server(said("hi")) as server:
        client = client_of(server)
        answer = await client.chat(
            HELLO, tools=[tool], max_tokens=5, temperature=0.0, settings={"stop": ["x"]}
        )
        await client.close()
    assert server.asked == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "tools": [tool.openai()],
            "max_tokens": 5,
            "temperature": 0.0,
            "stop": ["x"],
        }
    ]
    assert (answer.text, answer.finish_reason) == ("hi", "stop")
    assert client.usage == answer.usage == ChatUsage(7, 3, 2, requests=1)


async def test_arguments_travel_as_text_and_an_empty_content_beside_calls_as_null() -> None:
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "add", "arguments": {"a": 1}},
    }
    history: list[Message] = [
        *HELLO,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call],
            "reasoning_content": "hm",
        },
        {"role": "tool", "content": "1", "tool_call_id": "call_0"},
    ]
    async with odd_server(said("1")) as server:
        client = client_of(server)
        await client.chat(history)
        await client.close()
    sent = server.asked[0]["messages"][1]
    assert sent["content"] is None
    assert sent["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert "reasoning_content" not in sent


@pytest.mark.parametrize(
    "failure",
    [
        failed(500),
        failed(503),
        failed(429),
        failed(408),
        Reply(200, {"choices": []}, cut=5),
        Reply(502, "<html>"),
    ],
    ids=["500", "503", "429", "408", "half", "502"],
)
async def test_what_infrastructure_failed_is_asked_again(failure: Reply) -> None:
    async with odd_server(failure, failure, said("at last")) as server:
        client = client_of(server)
        assert (await client.chat(HELLO)).text == "at last"
        await client.close()
    assert client.usage.retries == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_what_the_server_refuses_is_asked_once(status: int) -> None:
    async with odd_server(failed(status, "not so", "because")) as server:
        error = await refusal(server)
    assert (error.status, error.code, error.retryable, len(server.asked)) == (
        status,
        "because",
        False,
        1,
    )
    assert f"answered {status}: not so" in str(error)


async def test_a_quota_that_is_spent_is_not_asked_again() -> None:
    async with odd_server(failed(429, "pay", "insufficient_quota")) as server:
        error = await refusal(server)
    assert (error.retryable, len(server.asked)) == (False, 1)


async def test_attempts_are_bounded() -> None:
    async with odd_server(failed(500)) as server:
        error = await refusal(server, max_retries=3)
    assert (error.retryable, len(server.asked)) == (True, 4)


async def test_the_server_says_how_long_to_wait() -> None:
    async with odd_server(failed(429, Retry_After="0.3"), said("now")) as server:
        client = client_of(server)
        start = time.monotonic()
        await client.chat(HELLO)
        await client.close()
    assert time.monotonic() - start >= 0.3


@pytest.mark.parametrize(
    "wait", ["3600", formatdate(time.time() + 3600, usegmt=True)], ids=["seconds", "date"]
)
async def test_a_wait_beyond_the_deadline_is_given_up_at_once(wait: str) -> None:
    async with odd_server(failed(429, Retry_After=wait)) as server:
        error = await refusal(server, deadline_s=30.0)
    assert "deadline_s=30" in str(error)
    assert error.status == 429


async def test_a_server_that_never_answers_is_named_after_the_timeout() -> None:
    async with odd_server(Reply(hang=True)) as server:
        error = await refusal(server, timeout_s=0.2, max_retries=1)
    assert "did not answer within 0.2 s" in str(error)
    assert len(server.asked) == 2


async def test_a_server_that_is_not_there_is_named() -> None:
    async with odd_server() as server:
        pass
    error = await refusal(server, max_retries=1)
    assert "cannot be reached" in str(error)
    assert server.url in str(error)


@pytest.mark.parametrize(
    "body", ["<html>", [1], {}, {"choices": []}, {"choices": [{"text": "a"}]}]
)
async def test_an_answer_of_another_shape_is_named(body: Any) -> None:
    async with odd_server(Reply(200, body)) as server:
        error = await refusal(server)
    assert not error.retryable
    assert server.url in str(error)


async def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    async with odd_server(failed(401, "wrong key: sk-very-secret")) as server:
        error = await refusal(server, api_key_env="MY_KEY")
        shown = repr(client_of(server, api_key_env="MY_KEY"))
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in str(error) + shown
    assert "<masked:MY_KEY>" in str(error)


async def test_a_named_key_that_is_not_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="api_key_env='NO_SUCH_KEY'"):
        ChatClient(ChatServerSpec("http://x/v1", "m", api_key_env="NO_SUCH_KEY"))


async def test_a_server_without_keys_gets_none() -> None:
    async with odd_server(said("hi")) as server:
        client = client_of(server)
        await client.chat(HELLO)
        await client.close()
    assert "authorization" not in server.headers[0]


async def test_requests_at_one_time_are_bounded() -> None:
    async with odd_server(said("hi")) as server:
        client = client_of(server, max_concurrent=3)
        await asyncio.gather(*(client.chat(HELLO) for _ in range(20)))
        await client.close()
    assert server.most_at_once <= 3
    assert client.usage.requests == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("base_url", url)
            for url in ("localhost:8000", "http://", "http://x:port/v1", "http://[::1/v1")
        ),
        ("max_concurrent", 0),
        ("timeout_s", 0.0),
        ("model", ""),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be"):
        ChatServerSpec(**{"base_url": "http://x/v1", "model": "m"} | {name: value})


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(
        pickle.dumps(ServerError("no", retryable=False, status=400, code="bad"))
    )
    assert (str(error), error.retryable, error.status, error.code) == (
        "no",
        False,
        400,
        "bad",
    )


@pytest.mark.parametrize("key", ["sk-se\ncret", "sk-s\u00e9cret"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(
        ConfigError, match="MY_KEY must hold a key of printable ASCII"
    ) as caught:
        ChatClient(ChatServerSpec("http://x/v1", "m", api_key_env="MY_KEY"))
    assert "cret" not in str(caught.value)


async def test_white_space_around_a_key_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " sk-1\n")
    async with odd_server(said("hi")) as server:
        client = client_of(server)
        await client.chat(HELLO)
        await client.close()
    assert server.headers[0]["authorization"] == "Bearer sk-1"


async def test_an_answer_that_is_not_packed_as_it_says_is_named() -> None:
    async with odd_server(Reply(200, "no gzip", {"Content-Encoding": "gzip"})) as server:
        error = await refusal(server, max_retries=1)
    assert (error.retryable, len(server.asked)) == (True, 2)
    assert "not as its head says" in str(error)


async def test_any_text_can_be_sent() -> None:
    text = "\ud800 \u2028 \x00 \U0001f600"
    async with odd_server(said("hi")) as server:
        client = client_of(server)
        await client.chat([{"role": "user", "content": text}])
        await client.close()
    assert server.asked[0]["messages"][0]["content"] == text
    assert server.headers[0]["content-type"] == "application/json"


async def test_a_retry_leaves_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with odd_server(failed(503), said("hi")) as server:
        client = client_of(server)
        await client.chat(HELLO)
        await client.close()
    (record,) = (one for one in caplog.records if one.name == "agentrl.llm.client")
    assert (record.levelname, vars(record)["event"], vars(record)["status"]) == (
        "WARNING",
        "chat_request_retried",
        503,
    )
    assert "answered 503: no" in record.getMessage()


async def test_a_redirection_is_not_followed() -> None:
    elsewhere = Reply(307, "", {"Location": "http://127.0.0.1:1/v1"})
    async with odd_server(elsewhere) as server:
        error = await refusal(server)
    assert (error.status, error.retryable, len(server.asked)) == (307, False, 1)


@pytest.mark.parametrize("before", [480, 490, 495])
async def test_of_a_key_that_a_server_repeats_a_cut_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "sk-0123456789abcdef")
    told = f"{'.' * before}sk-0123456789abcdef{'.' * 99}"
    async with odd_server(failed(401, told)) as server:
        error = await refusal(server)
    assert "sk-0" not in str(error)
