"""Chat client: asks one OpenAI-compatible server over the ``openai`` package.

- At most ``max_concurrent`` requests are in flight per event loop; each has a deadline.
- Only a failure of infrastructure is retried, and every retry is counted and logged.
- The key never appears in an error, a log line or a repr.
- ``openai`` is imported with the first request, so that importing this module stays light.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from agentrl.errors import ServerError
from agentrl.llm.server import ChatServerSpec
from agentrl.llm.wire import to_wire
from agentrl.types import Message, ToolSpec

if TYPE_CHECKING:
    import openai


logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.5
_SPENT_CODES = ("insufficient_quota", "billing_hard_limit_reached")  # 429, but waiting is no remedy
_REMEDIES = {
    400: "fix the request",
    403: "use a key that may use this model: {key} holds one that may not",
    401: "put a valid key into {key}",
    404: "see that base_url ends in /v1 and that the server has the model",
    429: "lower max_concurrent, or raise deadline_s",
}


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Tokens as the server counted them, and what they took.

    Args:
        prompt_tokens, completion_tokens, cached_tokens: the server's own counts; 0 where it gives
            none.
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
    """The HTTP client of one event loop, and the semaphore that bounds its requests."""

    http: openai.AsyncOpenAI
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
            ServerError: the server refused it, or its infrastructure failed for all attempts or
                ``deadline_s``.
        """
        optional = {
            "tools": [tool.openai() for tool in tools] or None,
            "max_tokens": max_tokens,
            "temperature": temperature,
            **(settings or {}),
        }
        body: dict[str, Any] = {
            "model": self.spec.model,
            "messages": [to_wire(message) for message in messages],
        } | {name: value for name, value in optional.items() if value is not None}
        content = json.dumps(body).encode()  # ASCII, which carries half a surrogate pair too
        start = time.monotonic()
        connection = self._connection()
        async with connection.permits:
            try:
                answer = await self._persist(connection.http, content)
            except ServerError:
                self.usage += ChatUsage(failures=1)
                raise
        usage = _usage(answer.get("usage"))
        self.usage += usage
        message, finish_reason = self._choice(answer)
        return ChatAnswer(message, finish_reason, usage, time.monotonic() - start)

    async def close(self) -> None:
        """Close the connections of this event loop; a later request opens new ones."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.http.close()

    def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            from openai import AsyncOpenAI

            http = AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self.spec.base_url,
                timeout=self.spec.timeout_s,
                max_retries=0,
            )
            # Of this loop alone; requests beyond it wait in order.
            permits = asyncio.Semaphore(self.spec.max_concurrent)
            self._connections[loop] = _Connection(http, permits)
        return self._connections[loop]

    async def _persist(self, http: openai.AsyncOpenAI, content: bytes) -> Mapping[str, Any]:
        """The answer of the first attempt that infrastructure did not fail.

        The package's own retries are off: they know neither a deadline nor a spent quota.
        """
        end = time.monotonic() + self.spec.deadline_s
        for attempt in range(self.spec.max_retries + 1):
            timeout_s = min(self.spec.timeout_s, max(end - time.monotonic(), 0.0))
            answer = await self._attempt(http, content, timeout_s)
            if isinstance(answer, str):
                return self._json(answer)
            error, wait_s = answer
            if not error.retryable or attempt == self.spec.max_retries:
                raise error
            if wait_s is None:
                longest = min(self.spec.max_backoff_s, _FIRST_BACKOFF_S * 2**attempt)
                wait_s = random.uniform(longest / 2, longest)
            if time.monotonic() + wait_s >= end:
                raise ServerError(
                    f"{error}; the next attempt would come after "
                    f"deadline_s={self.spec.deadline_s:g}, raise it to wait",
                    retryable=True,
                    status=error.status,
                    code=error.code,
                )
            self.usage += ChatUsage(retries=1)
            logger.warning(
                "%s; retry %d of %d in %.1f s",
                error,
                attempt + 1,
                self.spec.max_retries,
                wait_s,
                extra={"event": "chat_request_retried", "status": error.status, "wait_s": wait_s},
            )
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self, http: openai.AsyncOpenAI, content: bytes, timeout_s: float
    ) -> str | tuple[ServerError, float | None]:
        """The answer's text; or the error, and the seconds that the server asks to wait."""
        import openai

        headers: dict[str, str | openai.Omit] = {"Content-Type": "application/json"}
        if not self._key:
            headers["Authorization"] = openai.Omit()
        try:
            async with asyncio.timeout(timeout_s):
                return await http.post(
                    "/chat/completions",
                    cast_to=str,
                    content=content,
                    options={"headers": headers, "follow_redirects": False},
                )
        except openai.APIStatusError as refused:
            return self._refused(refused), _retry_after_s(
                refused.response.headers.get("Retry-After")
            )
        except (TimeoutError, openai.APITimeoutError):
            what = (
                f"did not answer within {self.spec.timeout_s:g} s; raise timeout_s, or ask for less"
            )
        except openai.APIConnectionError as broken:
            cause = broken.__cause__ or broken
            if type(cause).__name__ == "DecodingError":  # of the transport, which is openai's own
                what = (
                    f"answered with something that is not as its head says ({cause}); see its log"
                )
            else:
                what = (
                    f"cannot be reached ({type(cause).__name__}: {cause}); see that it runs there"
                )
        return self._error(what), None

    def _refused(self, refused: openai.APIStatusError) -> ServerError:
        status = refused.status_code
        said, code = _complaint(refused.body)
        remedy = _REMEDIES.get(status, "see the server's log" if status >= 500 else "see base_url")
        return self._error(
            f"answered {status}: {said or 'nothing'}; {remedy.format(key=self.spec.key_name)}",
            retryable=(status in (408, 429) or status >= 500) and code not in _SPENT_CODES,
            status=status,
            code=code,
        )

    def _json(self, text: str) -> Mapping[str, Any]:
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, Mapping):
            raise self._error(
                f"answered 200 with something that is no JSON object: {text[:200]!r}; see "
                "that base_url is that of an OpenAI-compatible server",
                retryable=False,
                status=200,
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
        self, what: str, *, retryable: bool = True, status: int | None = None, code: str = ""
    ) -> ServerError:
        """An error that names the server; the key is masked wherever the server repeated it."""
        text = f"model {self.spec.model!r} at {self.spec.base_url} {what}"
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


def _complaint(error: object) -> tuple[str, str]:
    """The server's message and its code, from the body's ``error`` that the package took out."""
    if not isinstance(error, Mapping):
        return str(error or "")[:500], ""
    said = error.get("message") or error.get("detail") or error
    return str(said)[:500], str(error.get("code") or error.get("type") or "")


def _retry_after_s(header: str | None) -> float | None:
    """Seconds to wait, from seconds or a date (RFC 9110, 10.2.3); None for any other text."""
    if header is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", header.strip()):
        return float(header)
    try:
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
