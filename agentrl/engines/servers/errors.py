"""What a server did instead of answering, as errors with a name."""

from __future__ import annotations

import json

from agentrl.errors import EngineError
from agentrl.guards.bounded_json import parse_json

_SHOWN_CHARACTERS = 400


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
    return text[:_SHOWN_CHARACTERS] or "no text"
