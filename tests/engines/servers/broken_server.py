"""A small HTTP server that does what a broken one does; it stands for no SGLang."""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from typing import TypeAlias

import httpx

from tests.kit.http import Answering
from tests.kit.waiting import DEADLINE_S

Behaviour: TypeAlias = Callable[["Handler"], None]


class Handler(Answering):
    """Answers each route as the server was told."""

    protocol_version = "HTTP/1.1"
    body = b""

    def setup(self) -> None:
        super().setup()
        assert isinstance(self.server, BrokenServer)
        self.server.connections.append(self.connection)

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        server = self.server
        assert isinstance(server, BrokenServer)
        server.calls.append(self.path)
        server.behaviours[self.path](self)

    def do_POST(self) -> None:
        self.do_GET()

    def do_OPTIONS(self) -> None:
        """A question for a route, as FastAPI answers it: 405 where there is one, 404 where not."""
        server = self.server
        assert isinstance(server, BrokenServer)
        if isinstance(server.behaviours, defaultdict):
            assert server.behaviours.default_factory is not None
            server.behaviours.default_factory()(self)
        else:
            self.answer(b"{}", status=405 if self.path in server.behaviours else 404)


class BrokenServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behaviours: Mapping[str, Behaviour]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours = behaviours
        self.calls: list[str] = []
        self.ending = threading.Event()
        self.connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def vanish(self) -> None:
        """Ends as a process that is killed: nothing listens any more, and every connection
        breaks.
        """
        self.ending.set()
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def broken_server(behaviours: Mapping[str, Behaviour]) -> Iterator[BrokenServer]:
    server = BrokenServer(behaviours)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.vanish()
        thread.join(DEADLINE_S)


def says(content: bytes, status: int = 200) -> Behaviour:
    return lambda handler: handler.answer(content, status=status)


def passes_on(url: str, *, after_s: float = 0.0) -> Behaviour:
    """What the server at ``url`` answers, so much later."""

    def behave(handler: Handler) -> None:
        assert isinstance(handler.server, BrokenServer)
        handler.server.ending.wait(after_s)
        headers = {"content-type": "application/json"}
        answer = httpx.request(
            handler.command,
            url + handler.path,
            content=handler.body,
            headers=headers,
            timeout=DEADLINE_S,
            trust_env=False,
        )
        handler.answer(answer.content, status=answer.status_code)

    return behave


def holds_back(url: str, seen: threading.Event) -> Behaviour:
    """A stream of the server at ``url``, but for its end: that comes once ``seen`` is set. Another
    answer is passed on.
    """

    def behave(handler: Handler) -> None:
        if not json.loads(handler.body or b"{}").get("stream"):
            return passes_on(url)(handler)
        handler.send_response(200)
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.close_connection = True
        headers = {"content-type": "application/json"}
        with httpx.stream(
            "POST",
            url + handler.path,
            content=handler.body,
            headers=headers,
            timeout=DEADLINE_S,
            trust_env=False,
        ) as answer:
            answer.raise_for_status()
            rest = b""
            for piece in answer.iter_bytes():
                *whole, rest = (rest + piece).split(b"\n\n")
                for event in whole:
                    if b'"finish_reason":null' not in event:
                        seen.wait(DEADLINE_S)
                    handler.wfile.write(event + b"\n\n")

    return behave


def breaks_off(handler: Handler) -> None:
    """Half of what it promised."""
    handler.answer(b'{"output_ids": [1, 2', promised=1000)


def keeps_silent(handler: Handler) -> None:
    """No answer until the server ends."""
    server = handler.server
    assert isinstance(server, BrokenServer)
    server.ending.wait(DEADLINE_S)
    handler.close_connection = True
