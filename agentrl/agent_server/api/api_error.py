"""API error: an HTTP error, which each dialect writes in its own shape."""

from __future__ import annotations


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


def bad_request(message: str) -> PolicyApiError:
    """The error of a request that violates a rule."""
    return PolicyApiError(400, "invalid_request", message)
