"""A service on a free port that fails in the ways that services fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kit.waiting import DEADLINE_S


class HttpService:
    """Answers each connection by the next of its ``script``, the last of them for ever.

    ``die`` closes the connection after the request was read; a number is the status of an answer.
    """

    def __init__(self, *script: str | int) -> None:
        self.script = list(script) or [200]
        self.requests = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                if not connection.recv(65536):
                    continue
                self.requests += 1
                todo = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if todo == "die":
                    continue
                head = f"HTTP/1.1 {todo} X\r\nContent-Length: 2\r\nConnection: close\r\n"
                connection.sendall(f"{head}Retry-After: 0\r\n\r\nok".encode())

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(DEADLINE_S)


@contextmanager
def service(*script: str | int) -> Iterator[HttpService]:
    """One that is closed at the end."""
    made = HttpService(*script)
    try:
        yield made
    finally:
        made.close()
