"""Security: who may ask the viewer anything, and what a page of it may do.

A login node is shared, so being on the machine is no permission:

- Every request must name a known host, which a page that rebinds its DNS name cannot.
- Every request must bring the token of the printed link: once in ``/?token=``, which becomes a
  cookie that no script reads, or as ``Authorization: Bearer TOKEN`` from a script.
- What a browser sends must come from a page of the viewer itself.
- Every answer carries a Content-Security-Policy under which nothing foreign loads or runs.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.viewer.wire import answer

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = ("GET", "HEAD")
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; worker-src 'self'; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>agentrl view</title>{head}
<h1>{title}</h1>
<p>{text}</p>
</html>
"""


class Guard:
    """ASGI middleware before everything that the viewer serves, static files included.

    Args:
        app: what is guarded.
        token: the secret of the printed link.
        hosts: names by which the viewer may be asked for, besides the loopback ones.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {_plain(name) for name in (*LOOPBACK, *hosts)}
        # one name a token: cookies of several viewers on one machine share the browser's jar
        self._cookie = f"agentrl_{_digest(b'name', self._token)[:12]}"
        self._session = _digest(b"session", self._token).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._answer(scope)
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _answer(self, scope: Scope) -> Response | None:
        """What the guard answers itself; None where the request may pass."""
        headers = Headers(scope=scope)
        is_api = scope["path"].startswith("/api/")
        if refused := self._wrong_host(headers.getlist("host")):
            return _refusal(403, refused, is_api)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["path"] == "/" and scope["method"] in _SAFE and "token" in query:
            return self._enter(query["token"][-1], headers)
        by_bearer = self._has_bearer(headers)
        if not (by_bearer or self._has_cookie(headers)):
            return _refusal(
                401,
                "this viewer answers to the link alone that `agentrl view` printed: open that link "
                "again, or send its token as Authorization: Bearer TOKEN",
                is_api,
            )
        if refused := _foreign(scope["method"], headers, is_api, by_bearer):
            return _refusal(403, refused, is_api)
        return None

    def _wrong_host(self, given: Sequence[str]) -> str:
        if len(given) == 1 and _plain(given[0]) in self._hosts:
            return ""
        return (
            f"the viewer does not know the host {', '.join(given)[:100]!r}; ask for it by a name "
            "that it knows, or start it with --allow-host NAME"
        )

    def _enter(self, token: str, headers: Headers) -> Response:
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            return _refusal(
                401,
                "the token of this link is not the viewer's: open the link that `agentrl view` "
                "printed last",
                is_api=False,
            )
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            entered: Response = RedirectResponse("/", 303)
        else:
            # a browser sends no SameSite=Strict cookie along a redirect that began elsewhere
            head = '<meta http-equiv="refresh" content="0;url=/">'
            entered = HTMLResponse(_page("agentrl view", '<a href="/">Open the viewer</a>', head))
        entered.headers["Cache-Control"] = "no-store"
        entered.set_cookie(
            self._cookie, self._session.decode(), httponly=True, samesite="strict", path="/"
        )
        return entered

    def _has_bearer(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self._token
        )

    def _has_cookie(self, headers: Headers) -> bool:
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        values = [value for name, _, value in pairs if name == self._cookie]
        return any(hmac.compare_digest(value.encode(), self._session) for value in values)


def _foreign(method: str, headers: Headers, is_api: bool, by_bearer: bool) -> str:
    """Why a request does not come from a page of the viewer, or from a script; empty where it does.

    A browser says where a request comes from; a script, which brings the token itself, need not.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    own = origin is not None and origin.partition("://")[2] == headers.get("host")
    if method in _SAFE:
        if is_api and site not in (None, "same-origin", "none"):
            return f"a page of another origin asked for this (Sec-Fetch-Site: {site})"
        return ""
    if origin is not None and not own:
        return f"a page of another origin asked for this (Origin: {origin[:100]})"
    if site not in (None, "same-origin"):
        return f"a page of another origin asked for this (Sec-Fetch-Site: {site})"
    if origin is None and site is None and not by_bearer:
        return (
            f"a {method} needs the header Origin of the viewer's own page, or the token as "
            "Authorization: Bearer TOKEN"
        )
    return ""


def _plain(host: str) -> str:
    """A host's name without its port, brackets and case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host.partition(":")[0] if host.count(":") == 1 else host
    return name.rstrip(".")


def _digest(use: bytes, token: bytes) -> str:
    return hashlib.sha256(b"agentrl viewer " + use + b":" + token).hexdigest()


def _refusal(status: int, message: str, is_api: bool) -> Response:
    if is_api:
        return answer({"error": message}, status)
    return HTMLResponse(_page("Not here", html.escape(message)), status)


def _page(title: str, text: str, head: str = "") -> str:
    return _PAGE.format(title=title, text=text, head=head)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-cache")
        await send(message)

    return sending
