"""Chat client: asks one OpenAI-compatible server over the ``openai`` package.

- At most ``max_concurrent`` requests are in flight per event loop; each has a deadline.
- Only a failure of infrastructure is retried, and every retry is counted and logged.
- The key never appears in an error, a log line or a repr.
- ``openai`` is imported with the first request, so that importing this module stays light.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from agentrl.errors import ServerError
from agentrl.guards.parsing import parse_json
from agentrl.guards.secret_mask import beginning
from agentrl.llm.server import ChatServerSpec
from agentrl.llm.wire import to_wire
from agentrl.types import Message, ToolSpec
from agentrl.types.clock import backoff_s
from agentrl.types.user_code.values import shown

if TYPE_CHECKING:
    import openai


logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.5
# 429, but waiting is no remedy
_SPENT_CODES = ("insufficient_quota", "billing_hard_limit_reached")
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
        return ChatUsage(
            *(getattr(self, name) + getattr(other, name) for name in self.__slots__)
        )


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


class ChatClient:
    """Asks one model on one server; usable from any event loop.

    Args:
        spec: the server.

    Attributes:
        usage: of all requests so far.

    Raises:
        ConfigError: the key's variable is named and not set.
    """

    def __init__(self, spec: ChatServerSpec) -> None:
        self.spec = spec
        self.usage = ChatUsage()
        self._key = spec.api_key()
        # by event loop: its HTTP client, and the semaphore that bounds its requests
        self._connections: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[openai.AsyncOpenAI, asyncio.Semaphore]
        ] = WeakKeyDictionary()

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
        # ASCII, which carries half a surrogate pair too
        content = json.dumps(body).encode()
        start = time.monotonic()
        http, permits = self._connection()
        async with permits:
            try:
                answer = self._json(await self._persist(http, content))
            except ServerError:
                self.usage += ChatUsage(failures=1)
                raise
        usage = _usage(answer.get("usage"))
        self.usage += usage
        match answer:
            case {"choices": [{"message": dict() as message, **choice}, *_]}:
                reason = str(choice.get("finish_reason") or "stop")
                return ChatAnswer(message, reason, usage, time.monotonic() - start)
        raise self._error(
            f"gave no choices[0].message: {shown(answer, 200)}; see the server's log",
            retryable=False,
            status=200,
        )

    async def close(self) -> None:
        """Close the connections of this event loop; a later request opens new ones."""
        http, _ = self._connections.pop(asyncio.get_running_loop(), (None, None))
        if http is not None:
            await http.close()

    def _connection(self) -> tuple[openai.AsyncOpenAI, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            from openai import AsyncOpenAI

            http = AsyncOpenAI(
                # The package refuses to be made without a key; ``_persist`` leaves the header out.
                api_key=self._key or "none",
                base_url=self.spec.base_url,
                timeout=self.spec.timeout_s,
                max_retries=0,
            )
            # Of this loop alone; requests beyond it wait in order.
            self._connections[loop] = http, asyncio.Semaphore(self.spec.max_concurrent)
        return self._connections[loop]

    async def _persist(self, http: openai.AsyncOpenAI, content: bytes) -> str:
        """The answer's text, of the first attempt that infrastructure did not fail.

        The package's own retries are off: they know neither a deadline nor a spent quota.
        """
        import openai

        spec = self.spec
        headers: dict[str, str | openai.Omit] = {"Content-Type": "application/json"}
        if not self._key:
            headers["Authorization"] = openai.Omit()
        end = time.monotonic() + spec.deadline_s
        for attempt in itertools.count():
            timeout_s = min(spec.timeout_s, max(end - time.monotonic(), 0.0))
            wait_s = None
            try:
                # httpx's own timeout begins again with each part of an answer.
                async with asyncio.timeout(timeout_s):
                    return await http.post(
                        "/chat/completions",
                        cast_to=str,
                        content=content,
                        options={"headers": headers, "follow_redirects": False},
                    )
            except openai.APIStatusError as refused:
                error = self._refused(refused)
                wait_s = _retry_after_s(refused.response.headers.get("Retry-After"))
            except (TimeoutError, openai.APITimeoutError):
                error = self._error(
                    f"did not answer within {spec.timeout_s:g} s; raise timeout_s, or ask for less"
                )
            except openai.APIConnectionError as broken:
                error = self._broken(broken.__cause__ or broken)
            if not error.retryable or attempt == spec.max_retries:
                raise error
            if wait_s is None:
                wait_s = backoff_s(
                    attempt, first_s=_FIRST_BACKOFF_S, longest_s=spec.max_backoff_s
                )
            if time.monotonic() + wait_s >= end:
                raise ServerError(
                    f"{error}; the next attempt would come after "
                    f"deadline_s={spec.deadline_s:g}, raise it to wait",
                    retryable=True,
                    status=error.status,
                    code=error.code,
                )
            self.usage += ChatUsage(retries=1)
            logger.warning(
                "%s; retry %d of %d in %.1f s",
                error,
                attempt + 1,
                spec.max_retries,
                wait_s,
                extra={
                    "event": "chat_request_retried",
                    "status": error.status,
                    "wait_s": wait_s,
                },
            )
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _broken(self, cause: BaseException) -> ServerError:
        kind = type(cause).__name__
        if kind == "DecodingError":
            # of the transport, which is openai's own
            return self._error(
                f"answered with something that is not as its head says ({cause}); see its log"
            )
        return self._error(f"cannot be reached ({kind}: {cause}); see that it runs there")

    def _refused(self, refused: openai.APIStatusError) -> ServerError:
        status = refused.status_code
        code = str(refused.code or refused.type or "")
        # its `error`, which the package took out
        said = refused.body
        if isinstance(said, Mapping):
            said = said.get("message") or said.get("detail") or said
        remedy = _REMEDIES.get(
            status, "see the server's log" if status >= 500 else "see base_url"
        )
        return self._error(
            f"answered {status}: {beginning(str(said or 'nothing'), 500)}; "
            f"{remedy.format(key=self.spec.key_name)}",
            retryable=(status in (408, 429) or status >= 500) and code not in _SPENT_CODES,
            status=status,
            code=code,
        )

    def _json(self, text: str) -> Mapping[str, Any]:
        try:
            answer = parse_json(text)
        except ValueError:
            answer = None
        if not isinstance(answer, Mapping):
            raise self._error(
                f"answered 200 with something that is no JSON object: {beginning(text, 200)!r}; "
                "see that base_url is that of an OpenAI-compatible server",
                retryable=False,
                status=200,
            )
        return answer

    def _error(
        self,
        what: str,
        *,
        retryable: bool = True,
        status: int | None = None,
        code: str = "",
    ) -> ServerError:
        """An error that names the server; the key is masked wherever the server repeated it."""
        text = f"model {self.spec.model!r} at {self.spec.base_url} {what}"
        if self._key:
            text = text.replace(self._key, f"<masked:{self.spec.key_name}>")
        return ServerError(text, retryable=retryable, status=status, code=code)


def _usage(found: Any) -> ChatUsage:
    counts = found if isinstance(found, Mapping) else {}
    details = counts.get("prompt_tokens_details")
    counts = {**counts, **(details if isinstance(details, Mapping) else {})}
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    numbers = {name: counts[name] for name in names if isinstance(counts.get(name), int)}
    return ChatUsage(**numbers, requests=1)


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
