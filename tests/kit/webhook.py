"""Webhook: a server that keeps what is posted, refuses it or answers nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.kit.http import Answering, serving


@dataclass
class Webhook:
    """What a server got.

    Args:
        status: that it answers with.
        free: no answer comes before.
        asked: a request is there.
    """

    status: int = 200
    free: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    posts: list[dict[str, Any]] = field(default_factory=list)

    def alerts(self) -> list[str]:
        """The names of what came, in order."""
        return [post["alert"] for post in self.posts]


@contextmanager
def webhook(*, status: int = 200, hangs: bool = False) -> Iterator[Webhook]:
    """Such a server at a URL with a secret in its path."""
    own = Webhook(status)
    if not hangs:
        own.free.set()

    class Handler(Answering):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            own.asked.set()
            own.free.wait()
            own.posts.append(json.loads(body))
            self.answer(b"ok", own.status)

    with serving(Handler) as address:
        own.url = f"{address}/services/T0/very-secret"
        try:
            yield own
        finally:
            own.free.set()
