"""HTTP client of a server: every failure of a call by its name."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from agentrl.engines.servers.section import ServersSpec
from agentrl.errors import EngineError
from agentrl.guards.parsing import parse_json
from agentrl.guards.secret_mask import beginning

CONNECT_S = 10.0
_KEPT_S = 2.0
"""Of an idle connection: servers close one after 5 s, and a call that it closes under would look
like a lost server."""
_SHOWN_CHARACTERS = 400
_EVENT_PREFIX = b"data: "
_EVENT_END = b"\n\n"
_LAST_EVENT = b"[DONE]"


class ServerLostError(EngineError):
    """A server is gone, hangs, or answers what no sound server answers; another one may serve the
    same request.
    """


class RefusedError(EngineError):
    """A server understood a call and refused it; it would refuse it again."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message, retryable=retryable)


def refusal(server: str, route: str, status: int, body: bytes) -> EngineError:
    """The error that an HTTP status stands for.

    Args:
        server: its name.
        route: what was called.
        status: 400 or above.
        body: of the answer.

    Returns:
        ``ServerLostError`` for 5xx, 408 and 429 (another server may do better), ``RefusedError``
        for any other.
    """
    text = error_text(body)
    if status >= 500 or status in (408, 429):
        return ServerLostError(
            f"{server} answered {route} with HTTP {status}: {text}; its log says why"
        )
    remedy = "; set api_key_env of the engine's section" if status in (401, 403) else ""
    return RefusedError(f"{server} refused {route} with HTTP {status}: {text}{remedy}")


def error_text(body: bytes) -> str:
    """What an error's body says, whichever shape it has: ``{"error": {"message"}}``, ``{"error"}``,
    ``{"message"}``, ``{"detail"}``, or plain text."""
    try:
        value = parse_json(body)
    except ValueError:
        value = body.decode("utf-8", "replace").strip()
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
    text = value if isinstance(value, str) else json.dumps(value)
    return beginning(text, _SHOWN_CHARACTERS) or "no text"


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event. Its bytes are cut at line feeds alone: a text in it may hold any
    other line's end.
    """
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(_EVENT_END)
        for event in whole:
            data = event.strip().removeprefix(_EVENT_PREFIX)
            if data and data != _LAST_EVENT:
                yield data


class HttpClient:
    """Calls of one server; used from one event loop.

    Args:
        name: for messages.
        url: ``http://host:port``.
        spec: limits of the calls.
        api_key: sent as a bearer token where the server asks for one.
    """

    def __init__(self, name: str, url: str, spec: ServersSpec, api_key: str | None) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.spec = spec
        self.http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            # With a limit, a call to go on would wait behind the requests that a pause holds.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEPT_S
            ),
            # Proxies and .netrc of the environment are for other hosts than the run's servers.
            trust_env=False,
        )

    async def healthy(self, timeout_s: float) -> bool:
        """Whether it answers ``/health``, for which it may generate a token."""
        try:
            return (await self.http.get("/health", timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def has_route(self, route: str) -> bool:
        """Whether the server has a route, asked without calling it."""
        timeout_s = self.spec.call_timeout_s
        with self.named(route, timeout_s):
            # FastAPI answers 405 where the route exists for other methods.
            return (await self.http.options(route, timeout=timeout_s)).status_code != 404

    async def close(self) -> None:
        """Closes the connections; calls in flight fail."""
        await self.http.aclose()

    async def json(
        self, route: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None
    ) -> Mapping[str, Any]:
        """A call that answers with an object."""
        return self.object(route, await self.send(route, body, timeout_s=timeout_s))

    def object(self, route: str, content: bytes) -> Mapping[str, Any]:
        """The object that an answer is."""
        try:
            answer = parse_json(content, max_bytes=2**28)
        except ValueError as error:
            raise ServerLostError(
                f"{self.name} answered {route} with {len(content)} bytes that are no JSON ({error})"
            ) from error
        if not isinstance(answer, dict):
            raise ServerLostError(
                f"{self.name} answered {route} with a {type(answer).__name__}, not an object"
            )
        return answer

    async def send(
        self, route: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None
    ) -> bytes:
        """A call: POST with a body, GET without one. ``timeout_s`` None sets no limit once it is
        connected."""
        method = "GET" if body is None else "POST"
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        with self.named(route, timeout_s):
            answer = await self.http.request(method, route, json=body, timeout=timeout)
        if answer.status_code >= 400:
            raise refusal(self.name, route, answer.status_code, answer.content)
        return answer.content

    async def ask(self, route: str) -> Mapping[str, Any]:
        """A question that is answered at once."""
        return await self.json(route, timeout_s=self.spec.call_timeout_s)

    async def act(self, route: str, body: Mapping[str, Any]) -> None:
        """A call whose answer says nothing."""
        await self.send(route, body, timeout_s=self.spec.call_timeout_s)

    async def events(
        self, route: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """The objects of an answer that is a stream of server-sent events; who asks closes it."""
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        with self.named(route, None):
            async with self.http.stream(
                "POST", route, json=body, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    raise refusal(
                        self.name, route, response.status_code, await response.aread()
                    )
                async for event in events(response.aiter_bytes()):
                    yield self.object(route, event)

    @contextmanager
    def named(self, route: str, timeout_s: float | None) -> Iterator[None]:
        """What the connection does within has a name."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise ServerLostError(
                f"{self.name} did not answer {route} within {timeout_s or CONNECT_S:g} s "
                f"({type(error).__name__})"
            ) from error
        except httpx.RemoteProtocolError as error:
            raise ServerLostError(
                f"{self.name} broke off in its answer to {route}: {error}"
            ) from error
        except httpx.HTTPError as error:
            raise ServerLostError(
                f"{self.name} at {self.url} cannot be reached for {route}: "
                f"{type(error).__name__}: {error}"
            ) from error
