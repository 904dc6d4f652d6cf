"""API error: an HTTP error in OpenAI's shape."""

from __future__ import annotations

from typing import Any


class PolicyApiError(Exception):
    """A request that gets an error in place of a completion.

    Args:
        status: the HTTP status.
        code: the error's name, which clients compare.
        message: the rule, the value found and the remedy.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


def bad_request(message: str) -> PolicyApiError:
    """The error of a request that violates a rule."""
    return PolicyApiError(400, "invalid_request", message)
