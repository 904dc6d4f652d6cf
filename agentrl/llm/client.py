"""A client of one OpenAI-compatible server: bounded, patient with infrastructure alone, and silent about its key."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from agentrl.errors import ServerError
from agentrl.llm.server import ChatServerSpec
from agentrl.llm.wire import to_wire
from agentrl.types import Message, ToolSpec

__all__ = ["ChatAnswer", "ChatClient", "ChatUsage"]

_FIRST_BACKOFF_S = 0.5
_SPENT_CODES = ("insufficient_quota", "billing_hard_limit_reached")  # a 429 that no waiting mends


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Tokens as the server counted them, and what they took.

    Args:
        prompt_tokens, completion_tokens, cached_tokens: the server's own counts; 0 where it gives none.
        requests: answered.
        retries: attempts that infrastructure failed.
        failures: requests that were given up.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0
    retries: int = 0
    failures: int = 0

    def __add__(self, other: ChatUsage) -> ChatUsage:
        return ChatUsage(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class ChatAnswer:
    """A completion as the server gave it.

    Args:
        message: the assistant's message in the wire's shape.
        finish_reason: the server's word, such as ``stop``, ``length`` or ``tool_calls``.
        usage: of this request.
        seconds: from the first attempt to the answer.
    """

    message: Mapping[str, Any]
    finish_reason: str
    usage: ChatUsage
    seconds: float

    @property
    def text(self) -> str:
        """The message's text."""
        content = self.message.get("content")
        return content if isinstance(content, str) else ""


@dataclass(slots=True)
class _Connection:
    """What belongs to one event loop."""

    http: httpx.AsyncClient
    permits: asyncio.Semaphore


@dataclass(slots=True)
class ChatClient:
    """Asks one model on one server; usable from any event loop.

    Args:
        spec: the server.

    Attributes:
        usage: of all requests so far.

    Raises:
        ConfigError: the key's variable is named and not set.
    """

    spec: ChatServerSpec
    usage: ChatUsage = field(default_factory=ChatUsage)
    _key: str | None = field(init=False, repr=False)
    _connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = field(
        init=False, repr=False, default_factory=WeakKeyDictionary
    )

    def __post_init__(self) -> None:
        self._key = self.spec.api_key()

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        temperature: float | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> ChatAnswer:
        """One completion.

        Args:
            messages: the conversation, which ends with what is to be answered.
            tools: on offer.
            max_tokens: at most so many are made; the server's own limit by default.
            temperature: of sampling; the server's own by default.
            settings: further keys of the request's body, such as ``top_p``, ``stop`` or ``seed``.

        Raises:
            ServerError: the server refused it, or its infrastructure failed for all attempts or ``deadline_s``.
        """
        body: dict[str, Any] = {
            "model": self.spec.model,
            "messages": [to_wire(message) for message in messages],
        }
        optional = {
            "tools": [tool.openai() for tool in tools] or None,
            "max_tokens": max_tokens,
            "temperature": temperature,
            **(settings or {}),
        }
        body |= {name: value for name, value in optional.items() if value is not None}
        start = time.monotonic()
        connection = self._connection()
        async with connection.permits:
            try:
                answer = await self._persist(
                    connection.http, body, time.monotonic() + self.spec.deadline_s
                )
            except ServerError:
                self.usage += ChatUsage(failures=1)
                raise
        usage = _usage(answer.get("usage"))
        self.usage += usage
        message, finish_reason = self._choice(answer)
        return ChatAnswer(message, finish_reason, usage, time.monotonic() - start)

    async def close(self) -> None:
        """Closes the connections of this event loop; a later request opens others."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.http.aclose()

    def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            headers = {"Content-Type": "application/json"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            limits = httpx.Limits(max_connections=self.spec.max_concurrent)
            http = httpx.AsyncClient(headers=headers, timeout=self.spec.timeout_s, limits=limits)
            connection = self._connections[loop] = _Connection(
                http, asyncio.Semaphore(self.spec.max_concurrent)
            )
        return connection

    async def _persist(
        self, http: httpx.AsyncClient, body: Mapping[str, Any], end: float
    ) -> Mapping[str, Any]:
        """The answer, of the first attempt that infrastructure did not fail."""
        content = json.dumps(body)  # in ASCII, which carries half a surrogate pair too
        for attempt in range(self.spec.max_retries + 1):
            wait_s: float | None = None
            try:
                async with asyncio.timeout(
                    min(self.spec.timeout_s, max(end - time.monotonic(), 0.0))
                ):
                    response = await http.post(
                        f"{self.spec.base_url.rstrip('/')}/chat/completions", content=content
                    )
                if response.is_success:
                    return self._json(response)
                error, wait_s = (
                    self._refused(response),
                    _retry_after_s(response.headers.get("Retry-After")),
                )
            except TimeoutError:
                error = self._error(
                    f"did not answer within {self.spec.timeout_s:g} s; raise timeout_s, or ask for less"
                )
            except httpx.TransportError as broken:
                error = self._error(
                    f"cannot be reached ({type(broken).__name__}: {broken}); see that it runs there"
                )
            except httpx.DecodingError as broken:
                error = self._error(
                    f"answered with something that is not as its head says ({broken}); see its log"
                )
            if not error.retryable or attempt == self.spec.max_retries:
                raise error
            if wait_s is None:
                longest = min(self.spec.max_backoff_s, _FIRST_BACKOFF_S * 2**attempt)
                wait_s = random.uniform(longest / 2, longest)
            if time.monotonic() + wait_s >= end:
                raise self._error(
                    f"{error}; the next attempt would come after deadline_s={self.spec.deadline_s:g}, raise it to wait",
                    status=error.status,
                    code=error.code,
                    named=True,
                )
            self.usage += ChatUsage(retries=1)
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _refused(self, response: httpx.Response) -> ServerError:
        status = response.status_code
        said, code = _complaint(response)
        mend = {
            400: "mend the request",
            401: f"put a valid key into {self.spec.key_name}",
            403: f"the key in {self.spec.key_name} may not use this model",
            404: "see that base_url ends in /v1 and that the server has the model",
            429: "lower max_concurrent, or raise deadline_s",
        }.get(status, "see the server's log" if status >= 500 else "see base_url")
        retryable = (status in (408, 429) or status >= 500) and code not in _SPENT_CODES
        return self._error(
            f"answered {status}: {said or 'nothing'}; {mend}", retryable, status, code
        )

    def _json(self, response: httpx.Response) -> Mapping[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, Mapping):
            raise self._error(
                f"answered {response.status_code} with something that is no JSON object: {response.text[:200]!r}; see "
                "that base_url is that of an OpenAI-compatible server",
                retryable=False,
                status=response.status_code,
            )
        return answer

    def _choice(self, answer: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
            found = str(answer)[:200]
            raise self._error(
                f"gave no choices[0].message: {found}; see the server's log",
                retryable=False,
                status=200,
            )
        return message, str(choice.get("finish_reason") or "stop")

    def _error(
        self,
        what: str,
        retryable: bool = True,
        status: int | None = None,
        code: str = "",
        *,
        named: bool = False,
    ) -> ServerError:
        """An error that names the server, its key masked wherever the server repeated it."""
        text = what if named else f"model {self.spec.model!r} at {self.spec.base_url} {what}"
        if self._key:
            text = text.replace(self._key, f"<masked:{self.spec.key_name}>")
        return ServerError(text, retryable=retryable, status=status, code=code)


def _usage(found: Any) -> ChatUsage:
    counts = found if isinstance(found, Mapping) else {}
    details = counts.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    prompt, completion, cached = (
        number if isinstance(number, int) else 0
        for number in (counts.get("prompt_tokens"), counts.get("completion_tokens"), cached)
    )
    return ChatUsage(prompt, completion, cached, requests=1)


def _complaint(response: httpx.Response) -> tuple[str, str]:
    """What the server says is wrong, and its name for it."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:500].strip(), ""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return str(error)[:500], ""
    said = error.get("message") or error.get("detail") or error
    return str(said)[:500], str(error.get("code") or error.get("type") or "")


def _retry_after_s(header: str | None) -> float | None:
    """Seconds to wait, from seconds or a date (RFC 9110, 10.2.3); None where it says neither."""
    if header is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", header.strip()):
        return float(header)
    try:
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
