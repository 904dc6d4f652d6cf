"""Endpoint faults: whether what a tool raised is the doing of a service that the configuration
names, and if so, whether the service had been sent anything.

- What a tool raises is for the model, unless an endpoint of ours failed.
- A host that stands in the call's arguments is the policy's choice, and never ours.
- A status is no hint to send again: only what was never sent, or may be sent twice, is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentrl.errors import ConfigError, ToolError, ToolFaultError
from agentrl.types import ToolCall

_CLIENTS = ("httpx", "httpx2", "openai")
_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"})
_OURS = frozenset({401, 407, 429, 502, 503, 504})
"""Statuses of a service that is not up, or refuses us and not the call."""
_WORD = re.compile(r"[\w-]+")
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class EndpointFault:
    """A failure of ours.

    Args:
        text: what failed.
        sent: the service may have been sent the call.
        by_call: the call itself may have brought it down.
    """

    text: str
    sent: bool
    by_call: bool


class EndpointError(Exception):
    """A service that a tool of ours stands for failed.

    Args:
        text: what failed.
        sent: the service may have been sent the call.
    """

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.fault = EndpointFault(text, sent, sent)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The services that a configuration names, as ``host:port``."""

    places: frozenset[str] = frozenset()

    @classmethod
    def of(cls, urls: Iterable[str] = (), arguments: object = None) -> Endpoints:
        """Those of ``urls``, and of every URL among ``arguments`` (JSON).

        Raises:
            ConfigError: one of ``urls`` is none.
        """
        named = list(urls)
        for url in named:
            if _place(url) is None:
                raise ConfigError(
                    f"ToolEnv.endpoints must be URLs with a host, got {url!r}; write "
                    "http://HOST:PORT",
                    fields=["ToolEnv.endpoints"],
                )
        found = map(
            _place, [*named, *(text for text in _texts(arguments) if "://" in text)]
        )
        return cls(frozenset(place for place in found if place is not None))

    def fault(
        self, error: BaseException, arguments: Mapping[str, Any]
    ) -> EndpointFault | None:
        """The failure of ours that ``error`` is; None where it is the model's to read.

        Args:
            error: what the tool raised.
            arguments: of the call.
        """
        if isinstance(error, ToolError):
            return EndpointFault(str(error), True, False) if error.retryable else None
        if isinstance(error, EndpointError):
            return error.fault
        if not self.places:
            return None
        for cause in _chain(error):
            place = _asked(cause)
            if place is None or place not in self.places:
                continue
            host = place.rpartition(":")[0]
            if any(_names_host(text, host) for text in _texts(arguments)):
                return None
            return _judged(cause, place)
        return None


def tool_error(
    call: ToolCall, fault: EndpointFault, *, alone: bool, answers: int
) -> ToolError:
    """The error that ends the episode."""
    said = json.dumps(call.arguments, sort_keys=True, default=str).encode(errors="replace")
    return ToolFaultError(
        f"tool {call.name!r}: {fault.text}",
        tool=call.name,
        by_call=fault.by_call,
        alone=alone,
        answers=answers,
        call=hashlib.sha256(said).hexdigest()[:16],
    )


def _judged(error: BaseException, place: str) -> EndpointFault | None:
    text = f"{place} failed: {type(error).__name__}: {error}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        if status < 500 and status not in _OURS:
            return None
        return EndpointFault(text, True, status not in _OURS)
    names = {base.__name__ for base in type(error).__mro__}
    if (
        not names & {"TransportError", "APIConnectionError"}
        or "UnsupportedProtocol" in names
    ):
        # Such as too many redirects, or a body that cannot be decoded.
        return None
    sent = not names & _NOT_SENT
    return EndpointFault(text, sent, sent)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The errors of a client behind ``error``, the first cause first."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for one in reversed(chain):
        if type(one).__module__.partition(".")[0] in _CLIENTS:
            yield one


def _asked(error: BaseException) -> str | None:
    """The place that was asked."""
    try:
        request = getattr(error, "request", None)
    except RuntimeError:
        # httpx: it was never set.
        return None
    return None if request is None else _place(str(request.url))


def _place(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return f"{parts.hostname}:{port}" if parts.hostname and port else None


def _names_host(text: str, host: str) -> bool:
    """Whether a text names a host: as a part of none longer, and one that might be a word, such as
    ``db``, in a URL or alone.
    """
    name = re.escape(host)
    where = rf"(?<![\w.-]){name}(?![\w-])"
    if _WORD.fullmatch(host):
        in_url = rf"//(?:[^/?#\s]*@)?{name}(?!\.?[\w-])"
        where = rf"{in_url}|\A\s*{name}(?:[:/?#]\S*)?\s*\Z"
    # Scripts without spaces stand beside a name.
    return re.search(where, text.casefold(), re.ASCII) is not None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
