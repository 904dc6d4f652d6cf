"""Chat server spec: address, model, key and patience of an OpenAI-compatible server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentrl.errors import ConfigError

_DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class ChatServerSpec:
    """A server and a model on it. It pickles, and holds no key: that stays in the environment.

    Args:
        base_url: up to and including ``/v1``, such as ``http://127.0.0.1:8000/v1``.
        model: the model's name there.
        api_key_env: the environment variable that holds the key; by default OPENAI_API_KEY where
            that is set.
        max_concurrent: requests in flight at once; others wait.
        timeout_s: seconds for one attempt.
        deadline_s: seconds for a request with all its attempts and the waits between them.
        max_retries: further attempts after one that infrastructure failed (no connection, 408, 429,
            5xx).
        max_backoff_s: longest wait before a further attempt where the server names none.

    Raises:
        ConfigError: a value outside its range, named.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    max_concurrent: int = 32
    timeout_s: float = 120.0
    deadline_s: float = 600.0
    max_retries: int = 5
    max_backoff_s: float = 30.0

    def __post_init__(self) -> None:
        rules = (
            (
                "base_url",
                is_http_url(self.base_url),
                "a URL such as http://127.0.0.1:8000/v1",
            ),
            ("model", bool(self.model), "the model's name on that server"),
            ("max_concurrent", self.max_concurrent >= 1, "at least 1"),
            ("timeout_s", self.timeout_s > 0, "more than 0"),
            ("deadline_s", self.deadline_s > 0, "more than 0"),
            ("max_retries", self.max_retries >= 0, "at least 0"),
            ("max_backoff_s", self.max_backoff_s > 0, "more than 0"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise ConfigError(
                    f"an OpenAI-compatible server's {name} must be {rule}, got "
                    f"{getattr(self, name)!r}"
                )

    @property
    def key_name(self) -> str:
        """The environment variable of the key."""
        return self.api_key_env or _DEFAULT_KEY

    def api_key(self) -> str | None:
        """The key; None where the default variable is not set, as for a server without keys.

        Raises:
            ConfigError: a variable is named and not set, or holds what no key is.
        """
        key = os.environ.get(self.key_name, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"the environment variable {self.key_name} must hold a key of printable ASCII "
                "characters, which an "
                "HTTP header can carry, and it holds others; export the key alone"
            )
        if not key and self.api_key_env is not None:
            raise ConfigError(
                f"api_key_env={self.api_key_env!r} must name an environment variable that holds a "
                f"key, and it is not set; export {self.api_key_env}, or leave api_key_env out for "
                "a server without keys"
            )
        return key or None


def is_http_url(text: str) -> bool:
    """Whether a text is the URL of an HTTP server: its scheme, a host, and perhaps a port."""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port or 1) > 0
        )
    except ValueError:
        # a port that is no number, half an IPv6 address
        return False
