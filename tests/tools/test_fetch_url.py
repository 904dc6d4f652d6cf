"""fetch_url: listed hosts, public addresses, sizes, redirects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpcore
import pytest

from agentrl.errors import ToolError
from agentrl.guards.addresses import is_public
from agentrl.tools import FetchUrlTool, ToolExecutor
from agentrl.tools.builtin.fetch_url import CheckedNetwork
from agentrl.types import ToolCall, ToolResult
from tests.kit.http import Answering, serving


class Handler(Answering):
    asked: list[str] = []  # noqa: RUF012 - shared with the test on purpose

    def do_GET(self) -> None:
        self.asked.append(self.path)
        kind, body, status, more = "text/plain; charset=latin-1", b"caf\xe9", 200, {}
        if self.path.startswith("/to?"):
            status, more = 302, {"Location": self.path.partition("?")[2]}
        elif self.path == "/page":
            kind = "text/html"
            body = b"<html><style>p{}</style><p>One &amp; <b>two</b></p><script>x()</script></html>"
        elif self.path == "/large":
            body = b"x" * 100_000
        elif self.path == "/image":
            kind = "image/png"
        elif self.path == "/zip":
            more = {"Content-Encoding": "gzip"}
        elif self.path == "/none":
            status, body = 404, b"not here"
        self.answer(body, status, {"Content-Type": kind, **more})


@pytest.fixture
def port() -> Iterator[int]:
    Handler.asked.clear()
    with serving(Handler) as url:
        yield int(url.rpartition(":")[2])


async def fetched(tool: FetchUrlTool, url: str) -> ToolResult:
    (record,) = await ToolExecutor([tool]).run(
        [ToolCall("call_0", "fetch_url", {"url": url})]
    )
    assert record.result is not None
    return record.result


def local(port: int, **settings: Any) -> FetchUrlTool:
    return FetchUrlTool([f"127.0.0.1:{port}"], allow_private=True, **settings)


@pytest.mark.parametrize(
    ("path", "content", "error"),
    [
        ("/", "café", None),
        ("/page", "One & two", None),
        ("/none", "Error: status 404\nnot here", "exception"),
        ("/image", "Error: it is of type image/png, and only text is read", "exception"),
        ("/zip", "Error: it is compressed, which was not asked for", "exception"),
        ("/to?/page", "One & two", None),
        ("/é ü", "café", None),
    ],
)
async def test_a_page_as_text(
    port: int, path: str, content: str, error: str | None
) -> None:
    result = await fetched(local(port), f"http://127.0.0.1:{port}{path}")
    assert (result.content, result.error) == (content, error)


async def test_a_large_page_is_cut(port: int) -> None:
    result = await fetched(local(port, max_bytes=10), f"http://127.0.0.1:{port}/large")
    assert result.content == "xxxxxxxxxx\n[... cut after 10 bytes ...]"
    assert result.truncated


async def test_redirects_are_counted_and_checked(port: int) -> None:
    url = f"http://127.0.0.1:{port}/to?/to?/to?/page"
    assert (await fetched(local(port), url)).content == "One & two"
    result = await fetched(local(port, max_redirects=2), url)
    assert result.content == "Error: more than 2 redirects"
    for other in ("http://localhost:1/", "file:///etc/passwd", "//[::1]/", "gopher://x/"):
        Handler.asked.clear()
        result = await fetched(local(port), f"http://127.0.0.1:{port}/to?{other}")
        assert result.error == "exception"
        assert len(Handler.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://evil.org",
        "http://example.org.evil.org/",
        "http://example.org@evil.org/",
        "http://user:word@www.example.org/",
        "http://www.example.org:8080/",
        "ftp://www.example.org/",
        "www.example.org",
        "http://",
        "http://[::1",
        "http://www.example.org:99999/",
    ],
)
async def test_only_listed_hosts_are_asked(url: str) -> None:
    result = await fetched(FetchUrlTool(["*.example.org"]), url)
    assert result.error == "exception"
    assert (
        "is none of the hosts" in result.content
        or "must be http" in result.content
        or ("is no URL" in result.content)
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f000001"]
)
async def test_a_private_address_is_never_asked(port: int, host: str) -> None:
    result = await fetched(FetchUrlTool(["*"]), f"http://{host}:{port}/")
    assert result.error == "exception"
    assert "private network" in result.content or "is not known" in result.content
    assert Handler.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "ff02::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_addresses_that_are() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")


async def test_a_name_that_changes_its_address_is_checked_where_it_is_connected(
    port: int,
) -> None:
    answers: list[Sequence[str]] = [["93.184.216.34", "127.0.0.1"], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    network = CheckedNetwork(resolve=resolve)
    # one private address among public ones, then a name that was rebound
    for left in (
        1,
        0,
    ):
        async with httpcore.AsyncConnectionPool(network_backend=network) as pool:
            with pytest.raises(
                Exception, match=r"rebinding\.example is of a private network"
            ):
                await pool.request("GET", f"http://rebinding.example:{port}/")
        assert len(answers) == left
    assert Handler.asked == []


async def test_a_name_is_resolved_once_for_a_connection(port: int) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    network = CheckedNetwork(allow_private=True, resolve=resolve)
    async with httpcore.AsyncConnectionPool(network_backend=network) as pool:
        answer = await pool.request("GET", f"http://some.example:{port}/")
    assert (answer.status, asked) == (200, ["some.example"])


def test_hosts_are_needed() -> None:
    with pytest.raises(ToolError, match="needs hosts, max_bytes >= 1"):
        FetchUrlTool([])
