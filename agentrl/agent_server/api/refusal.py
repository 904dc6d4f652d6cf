"""An answer that is no completion, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

__all__ = ["Refusal", "bad_request"]


class Refusal(Exception):  # noqa: N818 - an answer, in HTTP's terms
    """A request that is not answered with a completion.

    Args:
        status: the HTTP status.
        code: the error's name, as clients compare it.
        message: the rule, the value found and the mend.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


def bad_request(what: str) -> Refusal:
    """A request that breaks a rule."""
    return Refusal(400, "invalid_request", what)
