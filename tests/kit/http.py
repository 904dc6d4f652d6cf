"""HTTP: servers and ports of this machine for the length of a test."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import (
    BaseHTTPRequestHandler,
    SimpleHTTPRequestHandler,
    ThreadingHTTPServer,
)
from types import MappingProxyType

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Quiet(BaseHTTPRequestHandler):
    """A handler that prints nothing."""

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


class Files(Quiet, SimpleHTTPRequestHandler):
    """Serves a folder."""


class Answering(Quiet):
    """A handler that sends an answer in one call."""

    def answer(
        self,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        promised: int | None = None,
        whole: bool = True,
    ) -> None:
        """Sends the head and, where ``whole``, the body.

        ``promised`` are bytes that the head speaks of; fewer come where it is more, and the
        connection ends.
        """
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if promised is None else promised))
        self.end_headers()
        if whole:
            self.wfile.write(body)
        if promised is not None:
            self.close_connection = True


@contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler] | ThreadingHTTPServer,
) -> Iterator[str]:
    """The address of a server on a free port, which answers until the end."""
    server = (
        handler
        if isinstance(handler, ThreadingHTTPServer)
        else ThreadingHTTPServer(("127.0.0.1", 0), handler)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port() -> int:
    """A port at which nothing listens now, and that the system gives to nobody who asks for any:
    who asked may take seconds to listen there."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
