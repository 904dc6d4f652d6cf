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

from agentrl.guards.http_guard import SAFE, HttpGuard, foreign
from agentrl.viewer.wire import answer

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


class Guard(HttpGuard):
    """ASGI middleware before everything that the viewer serves, static files included.

    Args:
        app: what is guarded.
        token: the secret of the printed link.
        hosts: names by which the viewer may be asked for, besides the loopback ones.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str] = ()) -> None:
        super().__init__(app, refuse=_refusal, token=token, hosts=hosts)
        secret = token.encode()
        # one name a token: cookies of several viewers on one machine share the browser's jar
        self._cookie = f"agentrl_{_digest(b'name', secret)[:12]}"
        self._session = _digest(b"session", secret).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, _with_headers(send))

    def answer(self, scope: Scope) -> Response | None:
        """See ``HttpGuard.answer``: the printed link and its cookie pass too."""
        headers = Headers(scope=scope)
        if refused := self.wrong_host(headers):
            return _refusal(scope, 403, refused)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        # The printed link: its token becomes a cookie, and leaves the address.
        if scope["path"] == "/" and scope["method"] in SAFE and "token" in query:
            return self._enter(scope, query["token"][-1], headers)
        by_bearer = self.has_bearer(headers)
        if not (by_bearer or self._has_cookie(headers)):
            return _refusal(
                scope,
                401,
                "this viewer answers to the link alone that `agentrl view` printed: open that link "
                "again, or send its token as Authorization: Bearer TOKEN",
            )
        is_api = _is_api(scope)
        if refused := foreign(scope["method"], headers, is_api=is_api, by_bearer=by_bearer):
            return _refusal(scope, 403, refused)
        return None

    def _enter(self, scope: Scope, token: str, headers: Headers) -> Response:
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            return _refusal(
                scope,
                401,
                "the token of this link is not the viewer's: open the link that `agentrl view` "
                "printed last",
            )
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            entered: Response = RedirectResponse("/", 303)
        else:
            # a browser sends no SameSite=Strict cookie along a redirect that began elsewhere
            head = '<meta http-equiv="refresh" content="0;url=/">'
            entered = HTMLResponse(
                _page("agentrl view", '<a href="/">Open the viewer</a>', head)
            )
        entered.headers["Cache-Control"] = "no-store"
        entered.set_cookie(
            self._cookie, self._session.decode(), httponly=True, samesite="strict", path="/"
        )
        return entered

    def _has_cookie(self, headers: Headers) -> bool:
        pairs = (
            part.strip().partition("=") for part in headers.get("cookie", "").split(";")
        )
        values = [value for name, _, value in pairs if name == self._cookie]
        return any(hmac.compare_digest(value.encode(), self._session) for value in values)


def _digest(use: bytes, token: bytes) -> str:
    return hashlib.sha256(b"agentrl viewer " + use + b":" + token).hexdigest()


def _refusal(scope: Scope, status: int, message: str) -> Response:
    if _is_api(scope):
        return answer({"error": message}, status)
    return HTMLResponse(_page("Not here", html.escape(message)), status)


def _is_api(scope: Scope) -> bool:
    return str(scope["path"]).startswith("/api/")


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
