"""Whose fault a failing service is: ours, retried as far as nothing was sent twice, or the
model's.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import httpx
import httpx2
import openai
import pytest

from agentrl.errors import ConfigError, ToolError, ToolFaultError
from agentrl.tools import Endpoints, ToolExecutor, tool
from agentrl.types import ToolCall, ToolResult
from tests.kit.http import free_port
from tests.tools.http_service import service


async def called(made: Any, endpoint: str = "", **arguments: Any) -> ToolResult:
    endpoints = Endpoints.of([endpoint] if endpoint else [])
    executor = ToolExecutor([made], endpoints=endpoints)
    (record,) = await executor.run(
        [ToolCall("call_0", made.spec.name, arguments)], episode_id="e"
    )
    assert record.result is not None
    return record.result


def asking(url: str, library: Any = httpx, **limits: Any) -> Any:
    client = library.Client(timeout=None)

    @tool(**limits)
    def ask(text: str = "") -> str:
        """Ask."""
        answer = client.get(url)
        answer.raise_for_status()
        return str(answer.text)

    return ask


def openai_asking(url: str) -> Any:
    @tool
    async def ask() -> str:
        """Ask."""
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            answer = await client.chat.completions.create(model="m", messages=[])
        return str(answer)

    return ask


async def test_what_was_never_sent_is_tried_again_and_then_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with caplog.at_level(logging.WARNING), pytest.raises(ToolFaultError) as caught:
        await called(asking(url), url)
    error = caught.value
    assert (error.boundary, error.retryable, error.by_call, error.tool) == (
        "tool",
        True,
        False,
        "ask",
    )
    assert "ConnectError" in str(error)
    assert [vars(one)["event"] for one in caplog.records] == ["tool_retried"] * 3


async def test_a_service_that_comes_up_meanwhile_answers() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    tries = 0
    with service(200) as up:

        @tool
        def ask() -> str:
            """Ask."""
            nonlocal tries
            tries += 1
            return httpx.get(url if tries == 1 else up.url).text

        result = await called(ask, url)
    assert (result.content, result.error, result.metrics) == ("ok", None, {"retries": 1.0})


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(
    ("script", "by_call"),
    [("die", True), (500, True), (503, False), (429, False), (401, False)],
)
async def test_what_was_sent_is_never_sent_twice(
    library: Any, script: str | int, by_call: bool
) -> None:
    with service(script) as up:
        with pytest.raises(ToolFaultError) as caught:
            await called(asking(up.url, library), up.url)
        assert up.requests == 1
    assert (caught.value.by_call, caught.value.alone) == (by_call, True)


async def test_one_that_may_be_sent_twice_is() -> None:
    with service("die", 503, 200) as up:
        result = await called(asking(up.url, idempotent=True), up.url)
        assert (result.content, up.requests) == ("ok", 3)
    assert result.metrics == {"retries": 2.0}


async def test_the_openai_client_is_known() -> None:
    with service("die") as up, pytest.raises(ToolFaultError) as caught:
        await called(openai_asking(up.url), up.url)
    assert caught.value.by_call
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ToolFaultError) as caught:
        await called(openai_asking(url), url)
    assert not caught.value.by_call


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_a_refusal_of_the_call_is_the_models(status: int) -> None:
    with service(status) as up:
        assert (await called(asking(up.url), up.url)).error == "exception"


async def test_a_service_that_no_configuration_names_is_the_models() -> None:
    with service("die") as up:
        assert (await called(asking(up.url))).error == "exception"
        assert (await called(asking(up.url), "http://127.0.0.1:1")).error == "exception"


@pytest.mark.parametrize("text", ["http://127.0.0.1/", "see 127.0.0.1", "HTTP://127.0.0.1"])
async def test_a_host_of_the_calls_arguments_is_never_ours(text: str) -> None:
    with service("die") as up:
        assert (await called(asking(up.url), up.url, text=text)).error == "exception"
        assert up.requests == 1


@pytest.mark.parametrize(
    ("host", "arguments", "is_ours"),
    [
        ("db", {"query": "customer feedback"}, True),
        ("api", {"query": "the capital", "of": [{"a": "rapid"}]}, True),
        ("search", {"search_query": "cats", "search": "dogs"}, True),
        ("search", {"query": "search for cats"}, True),
        ("search", {"query": "search: cats"}, True),
        ("localhost", {"query": "what is localhost?"}, True),
        ("db", {"url": "http://mydb/"}, True),
        ("db", {"url": "http://db-2/ or http://db.example.org"}, True),
        ("db.local", {"query": "adb.local, x.db.local, db.local-2, db.localized"}, True),
        ("10.0.0.1", {"query": "110.0.0.1 10.0.0.12"}, True),
        ("db", {"host": "db"}, False),
        ("db", {"host": " DB\n"}, False),
        ("db", {"at": [{"page": "db:5000/x"}]}, False),
        ("db", {"page": "db/x?y"}, False),
        ("db", {"text": "see http://db and answer"}, False),
        ("db", {"text": "see http://db."}, False),
        ("db", {"text": "http://me:x@you@db:5000/"}, False),
        ("db.local", {"text": "Ask DB.local."}, False),
        ("db.local", {"text": "访问db.local吧"}, False),
        ("db.local", {"text": "(https://db.local:5000/x)"}, False),
        ("::1", {"text": "http://[::1]:5000/"}, False),
    ],
)
def test_a_host_is_named_by_a_value_and_not_by_a_part_of_a_word(
    host: str, arguments: dict[str, Any], is_ours: bool
) -> None:
    url = f"http://[{host}]:5000/" if ":" in host else f"http://{host}:5000/"
    error = httpx.ConnectError("no", request=httpx.Request("GET", url))
    assert (Endpoints.of([url]).fault(error, arguments) is not None) == is_ours


@pytest.mark.parametrize(
    "piece", ["//", "//db@", "//@", "db ", "db/", "db", " ", "d", "@", "db."]
)
@pytest.mark.parametrize("host", ["db", "db.local"])
def test_hosts_are_looked_for_in_linear_time(host: str, piece: str) -> None:
    text = piece * (2**20 // len(piece)) + "!"
    error = httpx.ConnectError("no", request=httpx.Request("GET", f"http://{host}/"))
    began = time.process_time()
    Endpoints.of([f"http://{host}"]).fault(error, {"text": text})
    # A quadratic search of a million characters takes hours.
    assert time.process_time() - began < 10


async def test_a_tool_that_takes_hosts_is_never_ours() -> None:
    with service("die") as up:
        made = asking(up.url)
        made.takes_hosts = True
        assert (await called(made, up.url)).error == "exception"


async def test_what_a_tool_says_is_ours_is_tried_again_where_it_may_be() -> None:
    tries = 0

    async def backend() -> str:
        """Back."""
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ToolError("the index is being built", retryable=True)
        return "done"

    with pytest.raises(ToolError, match="the index is being built"):
        await called(tool(backend))
    assert tries == 1
    tries = 0
    assert (await called(tool(backend, idempotent=True))).content == "done"


async def test_the_deadline_holds_over_all_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ToolFaultError):
        await called(asking(url, deadline_s=0.5), url)
    # Four attempts would wait for .7 s at the least.
    assert len(caplog.records) < 3


async def test_urls_among_arguments_are_endpoints() -> None:
    named = Endpoints.of(
        (), [{"url": "http://A.example/x", "n": [1, "ws://b:9"]}, "sqlite:///f"]
    )
    assert named.places == {"a.example:80", "b:9"}
    with pytest.raises(
        ConfigError, match=r"ToolEnv\.endpoints must be URLs with a host, got 'b:9'"
    ):
        Endpoints.of(["b:9"])
