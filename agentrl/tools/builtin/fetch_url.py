"""Fetch tool: reads a page of a listed host, and never one of a private network.

- A host is asked only where the list has it; so is each host that a page redirects to.
- Its name is resolved once for a connection. The addresses are checked, and one of them is
  connected to, so that a name server cannot answer the check and the connection differently.
"""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore

from agentrl.errors import ToolError
from agentrl.guards.addresses import Resolve, is_public, resolved
from agentrl.guards.html_text import html_text
from agentrl.guards.secret_mask import beginning
from agentrl.tools.base import BuiltInSettings, BuiltInTool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import text_spec

_PORTS = {"http": 80, "https": 443}
_HEADERS = [("User-Agent", "agentrl"), ("Accept-Encoding", "identity")]
_REDIRECTS = (301, 302, 303, 307, 308)
_TEXT = re.compile(r"text/|application/(json|xml|xhtml\+xml|[\w.+-]+\+(json|xml))")


class FetchUrlTool(BuiltInTool):
    """Gets a page of text by HTTP. What goes wrong is told in words: the model chose the address.

    Args:
        hosts: that may be asked: a name (``example.org``), all below one (``*.example.org``), or
            ``*`` for every public one; with ``:PORT`` where it is not 80 or 443.
        max_bytes: of a page, beyond which it is cut.
        max_redirects: followed, each to a listed host.
        allow_private: whether a host may have an address that is not public, such as one of this
            machine or its network.
        settings: see ``BuiltInSettings``; by default the description names the hosts.

    Raises:
        ToolError: no host is given, or a limit is out of its range.
    """

    takes_hosts = True
    deadline_s = 20.0

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        max_bytes: int = 2**18,
        max_redirects: int = 5,
        allow_private: bool = False,
        **settings: Unpack[BuiltInSettings],
    ) -> None:
        hosts = [hosts] if isinstance(hosts, str) else list(hosts)
        self.hosts = tuple(host.lower() for host in hosts)
        self.spec = text_spec(
            "fetch_url",
            f"Read a page of the web as text. Hosts: {', '.join(self.hosts)}.",
            "url",
            description="http:// or https://",
            maxLength=2000,
        )
        super().__init__(**settings)
        if not hosts or max_bytes < 1 or max_redirects < 0:
            raise ToolError(
                f"tool {self.spec.name!r}: needs hosts, max_bytes >= 1 and max_redirects >= 0, "
                f"got {hosts=} {max_bytes=} {max_redirects=}"
            )
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._network = CheckedNetwork(allow_private=allow_private)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Get ``arguments["url"]``."""
        try:
            return await self._fetched(arguments["url"], context.deadline_s)
        except (_PageRefusedError, httpcore.NetworkError, httpcore.ProtocolError) as error:
            reason = str(error) or type(error).__name__
        except httpcore.TimeoutException:
            reason = "the host did not answer in time"
        return ToolOutput(f"Error: {reason}", error="exception")

    async def _fetched(self, url: str, deadline_s: float) -> ToolOutput:
        async with httpcore.AsyncConnectionPool(network_backend=self._network) as pool:
            for _ in range(self._max_redirects + 1):
                self._check(url)
                async with pool.stream("GET", _ascii_url(url), headers=_HEADERS) as answer:
                    own = {key.lower(): value for key, value in answer.headers}
                    location = own.get(b"location", b"").decode("latin-1")
                    if answer.status not in _REDIRECTS or not location:
                        return await self._read(answer, own, deadline_s)
                url = urljoin(url, location)
        raise _PageRefusedError(f"more than {self._max_redirects} redirects")

    def _check(self, url: str) -> None:
        """Refuses what the list does not have."""
        try:
            parts: SplitResult = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            raise _PageRefusedError(f"{beginning(url, 200)!r} is no URL") from None
        # A name with its final dot is the same host, and must match the same pattern.
        host = (parts.hostname or "").rstrip(".")
        if parts.scheme not in _PORTS or not host or parts.username is not None:
            raise _PageRefusedError(
                f"{beginning(url, 200)!r} must be http://HOST/... or https://HOST/..."
            )
        place = host if port == _PORTS[parts.scheme] else f"{host}:{port}"
        if not any(fnmatch.fnmatchcase(place, pattern) for pattern in self.hosts):
            listed = ", ".join(self.hosts)
            raise _PageRefusedError(
                f"{place} is none of the hosts that may be read: {listed}"
            )

    async def _read(
        self, answer: httpcore.Response, headers: Mapping[bytes, bytes], deadline_s: float
    ) -> ToolOutput:
        kind, _, options = (
            headers.get(b"content-type", b"text/plain").decode("latin-1").partition(";")
        )
        if not _TEXT.match(kind.strip().lower()):
            raise _PageRefusedError(
                f"it is of type {kind.strip()[:80]}, and only text is read"
            )
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise _PageRefusedError("it is compressed, which was not asked for")
        body = bytearray()
        async for chunk in answer.aiter_stream():
            # One byte beyond the bound tells that there is more.
            body += chunk[: self._max_bytes + 1 - len(body)]
            if len(body) > self._max_bytes:
                break
        cut = len(body) > self._max_bytes
        page = bytes(body[: self._max_bytes])
        try:
            text = await asyncio.to_thread(_as_text, page, kind, options, deadline_s)
        except TimeoutError as error:
            raise _PageRefusedError(str(error)) from None
        if cut:
            text += f"\n[... cut after {self._max_bytes} bytes ...]"
        if answer.status >= 400:
            return ToolOutput(f"Error: status {answer.status}\n{text}", error="exception")
        return ToolOutput(text, truncated=cut)


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to addresses that it has looked at itself.

    Args:
        allow_private: whether an address may be other than public.
        resolve: the addresses of a host, asked once a connection.
    """

    def __init__(
        self, *, allow_private: bool = False, resolve: Resolve | None = None
    ) -> None:
        self._allow_private = allow_private
        self._resolve = resolve or resolved
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the host's first address.

        Raises:
            _PageRefusedError: the host has no address, or one that is not public.
        """
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise _PageRefusedError(
                f"the host {host} is not known ({error.strerror})"
            ) from None
        for address in addresses:
            if not self._allow_private and not is_public(address):
                raise _PageRefusedError(f"{host} is of a private network ({address})")
        if not addresses:
            raise _PageRefusedError(f"the host {host} has no address")
        return await self._backend.connect_tcp(
            addresses[0], port, timeout, local_address, socket_options
        )

    async def connect_unix_socket(
        self, *args: Any, **kwargs: Any
    ) -> httpcore.AsyncNetworkStream:
        """There is none."""
        raise _PageRefusedError("only hosts are asked")

    async def sleep(self, seconds: float) -> None:
        """As httpcore needs it."""
        await asyncio.sleep(seconds)


class _PageRefusedError(Exception):
    """What is not fetched, in words for the model."""


def _ascii_url(url: str) -> str:
    """The URL as a request writes it, without its fragment."""
    parts = urlsplit(url)._replace(fragment="")
    try:
        host = parts.netloc.encode("idna").decode()
    except UnicodeError:
        raise _PageRefusedError(f"{beginning(parts.netloc, 200)!r} is no host") from None
    return re.sub(
        r"[^!-~]", lambda found: _percent(found[0]), parts._replace(netloc=host).geturl()
    )


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))


def _as_text(body: bytes, kind: str, options: str, seconds: float) -> str:
    charset = re.search(r"charset=[\"']?([\w.-]+)", options)
    try:
        text = body.decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        text = body.decode("utf-8", "replace")
    return html_text(text, seconds=seconds) if "html" in kind else text
