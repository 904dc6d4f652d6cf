"""``agentrl serve search`` and the tool that asks it: Search-R1's shapes, the cache, faults."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from agentrl.envs import ToolEnv
from agentrl.errors import ConfigError, ToolError, ToolFaultError
from agentrl.tools import Hit, SearchClient, SearchIndex, ToolReference, resolve_tools
from agentrl.tools.search.service import search_app
from agentrl.types import Action, Task, ToolCall
from agentrl.types.machine import listening_socket
from tests.kit.http import free_port

DOCUMENTS = [
    ("1", "Ada", "The mother of Ada is Eve."),
    ("2", "Eve", "The mother of Eve is Ida."),
]
TASK = Task("t", ({"role": "user", "content": "?"},))


class Counted(SearchIndex):
    """Remembers the batches that it was asked."""

    def __init__(self) -> None:
        super().__init__(DOCUMENTS)
        self.batches: list[list[str]] = []

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        return super().search_many(queries, top_k)


@pytest.fixture
def index() -> Counted:
    return Counted()


@pytest.fixture
def http(index: Counted) -> TestClient:
    return TestClient(search_app(index, cached=2), "http://localhost")


def test_answers_have_search_r1s_shapes(http: TestClient) -> None:
    body = {"queries": ["mother ada", "zebra"], "topk": 1, "return_scores": True}
    answer = http.post("/retrieve", json=body).json()
    (hit,) = answer["result"][0]
    assert hit["document"]["contents"] == '"Ada"\nThe mother of Ada is Eve.'
    assert hit["document"]["id"] == "1"
    assert hit["score"] > 0
    assert answer["result"][1] == []
    without = http.post("/retrieve", json={**body, "return_scores": False}).json()
    assert without["result"][0] == [hit["document"]]


def test_a_request_is_one_batch_of_what_the_cache_lacks(
    index: Counted, http: TestClient
) -> None:
    def ask(*queries: str) -> list[list[dict[str, str]]]:
        found: list[list[dict[str, str]]] = http.post(
            "/retrieve", json={"queries": queries, "topk": 2}
        ).json()["result"]
        return found

    first = ask("ada", "eve", "ada")
    assert index.batches == [["ada", "eve"]]
    assert ask("eve", "ida") == [first[1], *ask("ida")]
    assert index.batches == [["ada", "eve"], ["ida"]]
    ask("ada")  # only two answers are kept, and the oldest went
    assert index.batches[-1] == ["ada"]
    assert http.get("/health").json() == {"status": "ok", "documents": 2, "cache_hits": 2}


@pytest.mark.parametrize(
    "body",
    [
        {"queries": "ada"},
        {"queries": ["ada"], "topk": 0},
        {"queries": ["ada"], "top_k": 3},
        {"queries": ["x" * 10_001]},
    ],
)
def test_a_wrong_request_is_refused(http: TestClient, body: object) -> None:
    assert http.post("/retrieve", json=body).status_code == 422


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real ``agentrl serve search``."""
    folder = tmp_path_factory.mktemp("served")
    rows = [{"id": i, "title": title, "text": text} for i, title, text in DOCUMENTS]
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "agentrl", "serve", "search", str(folder / "c.jsonl")]
    command += ["--port", "0", "--index-dir", str(folder / "index")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving 2 documents of "), line
        try:
            yield line.split(" at ")[1].split()[0]
        finally:
            process.terminate()
    assert process.returncode in (0, -15)


def asking(url: str, **args: Any) -> ToolEnv:
    entry = ToolReference(function="search", args={"url": url, "top_k": 1, **args})
    return ToolEnv(TASK, tools=[entry])


async def stepped(env: ToolEnv, query: str = "mother ada") -> str:
    try:
        await env.reset(seed=0)
        call = ToolCall("call_0", "search", {"query": query})
        message = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
        result = await env.step(Action("", message, (call,)))  # type: ignore[arg-type]
        return str(result.observation.messages[0]["content"])
    finally:
        await env.close()


async def test_the_tool_asks_the_server(served: str) -> None:
    assert await stepped(asking(served)) == "Ada: The mother of Ada is Eve."
    assert await stepped(asking(served), "zebra") == "No document matches."
    assert "the search was refused" in await stepped(
        asking(served), "x" * 10_001
    )  # the model's doing


def test_a_check_asks_for_its_health(served: str) -> None:
    (tool,) = resolve_tools([ToolReference(function="search", args={"url": served})])
    assert asyncio.run(tool.ping()) == f"2 documents at {served}"  # type: ignore[union-attr]


async def test_a_server_that_is_away_is_our_fault_and_no_answer() -> None:
    with pytest.raises(
        ToolError, match=r"the search server http.* failed: ConnectError"
    ) as raised:
        await stepped(asking(f"http://127.0.0.1:{free_port()}"))
    assert raised.value.retryable


async def test_a_server_that_hangs_is_our_fault_and_no_timeout_of_the_model() -> None:
    # It takes connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        told = f"the search server http://127.0.0.1:{port} failed: took longer than 0.1 s"
        with pytest.raises(ToolFaultError, match=told) as raised:
            await stepped(asking(f"http://127.0.0.1:{port}", deadline_s=0.1))
    assert (raised.value.retryable, raised.value.by_call) == (True, True)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (httpx.Response(503), "503"),
        (httpx.Response(200, text="<html>"), "JSONDecodeError"),
        (httpx.Response(200, json=[]), "answered \\[\\]"),
        (httpx.Response(200, json={"result": []}), "0 results for 1 queries"),
        (httpx.Response(200, json={"result": [[{"score": 1}]]}), "no answer of /retrieve"),
    ],
)
def test_an_answer_that_is_none_is_our_fault(answer: httpx.Response, told: str) -> None:
    from agentrl.tools.execution.faults import EndpointError

    client = SearchClient("http://search.invalid")
    client._http = httpx.Client(transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(EndpointError, match=told):
        client.search_many(["x"], 1)


def test_documents_and_url_exclude_each_other() -> None:
    for args in ({}, {"documents": "c.jsonl", "url": "http://a"}):
        with pytest.raises(ConfigError, match="takes either documents"):
            resolve_tools([ToolReference(function="search", args=args)], ".")
    with pytest.raises(ConfigError, match=r"url must be http://HOST:PORT, got 'a:1'"):
        SearchClient("a:1")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    from agentrl.cli.main import run

    (tmp_path / "c.jsonl").write_text('{"text": "x"}\n')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        given = ["serve", "search", str(tmp_path / "c.jsonl"), "--port", port]
        assert run([*given, "--index-dir", str(tmp_path / "index")]) == 4


async def test_answers_do_not_wait_for_an_acknowledgement() -> None:
    undelayed: list[int] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        undelayed.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = listening_socket("127.0.0.1", 0, "the search")
    async with await asyncio.start_server(answer, sock=listening):
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        await reader.read()
        writer.close()
    assert undelayed == [1]
