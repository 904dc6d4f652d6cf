"""HTTP guard: who may ask a server of ours anything, and how much a request may bring.

Being on the machine is no permission, since login nodes are shared:

- Every request names a known host, which a page that rebinds its DNS name cannot.
- Every request brings the server's token, as ``Authorization: Bearer TOKEN``.
- What a browser sends comes from a page of the server itself.
- A body is read as a whole, within bounds of size and time, before the application sees it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SAFE = ("GET", "HEAD")
TOKEN_VARIABLE = "AGENTRL_TOKEN"
"""Environment variable of the token that a server asks for."""
_ANY = ("0.0.0.0", "::", "")
_BODY_S = 60.0

Refuse = Callable[[Scope, int, str], Response]


class HttpGuard:
    """ASGI middleware before everything that a server serves.

    Args:
        app: what is guarded.
        refuse: makes the answer to a request that is refused, of its status and why.
        token: the secret that a request brings; empty where none is asked for.
        hosts: names by which the server may be asked for, besides the loopback ones.
        addresses: whether any address will do as the host: no page can rebind one.
        max_body_bytes: of a request.
        admitted: whether a request may pass without the token, since it has a secret of its own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        refuse: Refuse,
        token: str = "",
        hosts: Sequence[str] = (),
        addresses: bool = False,
        max_body_bytes: int = 2**20,
        admitted: Callable[[Scope, Headers], bool] = lambda _scope, _headers: False,
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._token = token.encode()
        self._hosts = {plain_host(name) for name in (*LOOPBACK, *hosts)}
        self._addresses = addresses
        self._max_body_bytes = max_body_bytes
        self._admitted = admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self.answer(scope)
        if refusal is None:
            body = await self._body(scope, receive)
            if not isinstance(body, Response):
                await self._app(scope, body, send)
                return
            refusal = body
        await refusal(scope, receive, send)

    def answer(self, scope: Scope) -> Response | None:
        """What the guard answers itself; None where the request may pass."""
        headers = Headers(scope=scope)
        if refused := self.wrong_host(headers):
            return self._refuse(scope, 403, refused)
        if refused := foreign(scope["method"], headers, is_api=True, by_bearer=True):
            return self._refuse(scope, 403, refused)
        if not self._token or self.has_bearer(headers) or self._admitted(scope, headers):
            return None
        return self._refuse(
            scope,
            401,
            "this server answers who brings its token, which it printed when it started: send it "
            "as Authorization: Bearer TOKEN (an OpenAI client's api_key)",
        )

    def wrong_host(self, headers: Headers) -> str:
        """Why a request's host is none of the server's; empty where it is one."""
        given = headers.getlist("host")
        if len(given) == 1 and self._knows(plain_host(given[0])):
            return ""
        return (
            f"this server does not know the host {', '.join(given)[:100]!r}; ask for it by a name "
            "that it knows, or start it with --allow-host NAME"
        )

    def has_bearer(self, headers: Headers) -> bool:
        """Whether a request brings the token."""
        return hmac.compare_digest(bearer(headers).encode(errors="replace"), self._token)

    def _knows(self, host: str) -> bool:
        if host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self._addresses

    async def _body(self, scope: Scope, receive: Receive) -> Receive | Response:
        """What gives the application the body again, or the refusal."""
        most = self._max_body_bytes
        told = Headers(scope=scope).get("content-length", "0")
        too_large = self._refuse(
            scope, 413, f"the body of a request must have at most {most:,} bytes"
        )
        if len(told) > 18 or (told.isdecimal() and int(told) > most):
            return too_large
        parts = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_S):
                while (message := await receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        return too_large
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            return self._refuse(scope, 408, f"the body did not come within {_BODY_S:g} s")
        if message["type"] == "http.request":
            message = {"type": "http.request", "body": b"".join(parts), "more_body": False}
        first = [message]

        async def again() -> Message:
            return first.pop() if first else await receive()

        return again


def bearer(headers: Headers) -> str:
    """What a request brings as its bearer's token; empty without one."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def foreign(method: str, headers: Headers, *, is_api: bool, by_bearer: bool) -> str:
    """Why a request does not come from a page of the server, or from a script; empty where it does.

    A browser says where a request comes from; a script, which brings the token itself, need not.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    own = origin is not None and origin.partition("://")[2] == headers.get("host")
    if method in SAFE:
        if is_api and site not in (None, "same-origin", "none"):
            return f"a page of another origin asked for this (Sec-Fetch-Site: {site})"
        return ""
    if origin is not None and not own:
        return f"a page of another origin asked for this (Origin: {origin[:100]})"
    if site not in (None, "same-origin"):
        return f"a page of another origin asked for this (Sec-Fetch-Site: {site})"
    if origin is None and site is None and not by_bearer:
        return (
            f"a {method} needs the header Origin of the server's own page, or the token as "
            "Authorization: Bearer TOKEN"
        )
    return ""


def own_hosts(host: str) -> tuple[str, ...]:
    """The names by which a server is asked for that listens on ``host``."""
    return (socket.gethostname(), socket.getfqdn()) if host in _ANY else (host,)


def plain_host(host: str) -> str:
    """A host's name without its port, brackets and case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host.partition(":")[0] if host.count(":") == 1 else host
    return name.rstrip(".")
