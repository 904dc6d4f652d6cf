"""Proxy server: serves the connections of sandboxes, and judges each of their requests.

RFC 9112; RFC 9110, sec. 9.3.6.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentrl.guards.addresses import Resolve, in_url, resolved
from agentrl.types.loop_thread import LoopThread

from .allow import AllowList, is_host, split_port

MAX_HEAD_BYTES = 64 * 2**10
# of a body: a petabyte
_MAX_LENGTH_DIGITS = 15
# characters of what was asked that an answer repeats
_MAX_ECHO = 100
_OWN_HEADERS = ("host", "connection", "keep-alive", "te", "trailer", "upgrade")


class BadRequest(ValueError):  # noqa: N818
    """What came is no request that this proxy serves.

    Args:
        status: of the answer, as ``400 Bad Request``.
        why: one line for the code.
    """

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the proxy goes on with it.

    Attributes:
        method: ``CONNECT`` opens a tunnel; any other is one exchange.
        host, port: the server.
        head: what the server is sent first; empty for a tunnel.
        body_bytes: how much of the body follows.
    """

    method: str
    host: str
    port: int
    head: bytes
    body_bytes: int


def parse(raw: bytes) -> Request:
    """The request of a head, up to and with its empty line.

    The server gets one exchange with the host that was judged: the ``Host`` is made of the target,
    the connection ends afterwards, and a body has a length, so that no second request can hide
    behind it.

    Raises:
        BadRequest: it is malformed, or not for a proxy.
    """
    try:
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        method, target, version = first.split(" ")
    except ValueError:
        raise BadRequest("400 Bad Request", "the request line is malformed") from None
    if not first.isprintable() or not (method.isascii() and method.isalpha()):
        raise BadRequest("400 Bad Request", "the request line is malformed")
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(
            "400 Bad Request", f"{version[:_MAX_ECHO]!r} is not served; use HTTP/1.1"
        )
    if method == "CONNECT":
        host, tunnel_port = split_port(target)
        if not tunnel_port or not is_host(host):
            raise BadRequest(
                "400 Bad Request", f"CONNECT needs host:port, got {target[:_MAX_ECHO]!r}"
            )
        return Request(method, host, tunnel_port, b"", 0)
    host, port, path = _target(target)
    kept, length = _headers(lines)
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {_written(host, port)}",
        *kept,
        "Connection: close",
        "",
        "",
    ]
    return Request(method, host, port, "\r\n".join(head).encode("latin-1"), length)


def _target(target: str) -> tuple[str, int, str]:
    try:
        url = urlsplit(target)
        host = url.hostname
        port = url.port or 80
    except ValueError:
        raise BadRequest("400 Bad Request", f"{target[:_MAX_ECHO]!r} is no URL") from None
    if url.scheme != "http" or not host or not is_host(host):
        asked = f"got {target[:_MAX_ECHO]!r}"
        raise BadRequest(
            "400 Bad Request",
            f"a proxy is asked for http://host/path or by CONNECT, {asked}",
        )
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return host, port, path


def _headers(lines: list[str]) -> tuple[list[str], int]:
    """Those that the server gets, and the length of the body."""
    kept = []
    lengths = set[str]()
    for line in lines:
        name, colon, value = line.partition(":")
        plain = name.lower()
        if (
            not colon
            or not name
            or name != name.strip()
            or any(bad in line for bad in "\r\n\0")
        ):
            raise BadRequest("400 Bad Request", "a header is malformed")
        if plain == "transfer-encoding":
            raise BadRequest("411 Length Required", "a body needs a Content-Length here")
        if plain == "content-length":
            lengths.add(value.strip())
        if plain not in _OWN_HEADERS and not plain.startswith("proxy-"):
            kept.append(line)
    if len(lengths) > 1 or not all(
        length.isascii() and length.isdigit() for length in lengths
    ):
        raise BadRequest("400 Bad Request", "the Content-Length is malformed")
    if any(len(length) > _MAX_LENGTH_DIGITS for length in lengths):
        raise BadRequest(
            "413 Content Too Large",
            f"a Content-Length has at most {_MAX_LENGTH_DIGITS} digits here",
        )
    return kept, int(next(iter(lengths), "0"))


def _written(host: str, port: int) -> str:
    name = in_url(host)
    return name if port == 80 else f"{name}:{port}"


_CONNECT_S = 10.0
_IDLE_S = 60.0
_END_S = 5.0
_PAUSE_S = 1.0
_CHUNK = 1 << 16
_MAX_CONNECTIONS = 256
_OTHERS = "other hosts"

_Streams = tuple[StreamReader, StreamWriter]

logger = logging.getLogger(__name__)


class ProxyServer:
    """Serves HTTP requests and CONNECT tunnels to allowed hosts; everything else is answered with
    the reason.

    A name is resolved here, once, and the connection goes to the very address that was judged, so
    that a name which leads elsewhere at the next look-up gains nothing.

    Args:
        listener: a listening stream socket; owned from here on.
        allow: who may be reached.
        resolve: the addresses of a host and port; the system's by default.
        max_places: places that are counted and logged by name.

    Attributes:
        counts: requests by ``host:port`` and outcome, ``allowed`` or ``refused``; those beyond
            ``max_places`` as ``other hosts``, since the code chooses the names. Look, do not touch.
    """

    def __init__(
        self,
        listener: socket.socket,
        allow: AllowList,
        *,
        resolve: Resolve | None = None,
        max_places: int = 1000,
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._max_places = max_places
        self._listener = listener
        self._allow = allow
        self._resolve = resolve or resolved
        self._open: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        # Its loop owns all of the above but counts, which others may read.
        self._io = LoopThread("agentrl-sandbox-proxy")
        self._loop = self._io.loop
        self._io.call(self._listen)

    def close(self) -> None:
        """End every connection and the thread; a second call does nothing."""
        if self._listener.fileno() >= 0:
            wait((self._io.submit(self._end()),), _END_S)
            self._io.stop()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def _end(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            # the peer has gone
            return
        except OSError as error:
            logger.warning(
                "the sandboxes' proxy cannot accept a connection: %s; it goes on in %g s",
                error,
                _PAUSE_S,
                extra={"event": "sandbox_proxy_paused"},
            )
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE_S, self._listen)
            return
        sock.setblocking(False)
        task = self._loop.create_task(self._serve_one(sock))
        self._open.add(task)
        task.add_done_callback(functools.partial(self._served, sock))

    def _served(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        # perhaps before it began
        if task.cancelled():
            sock.close()

    async def _serve_one(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_HEAD_BYTES)
        try:
            if len(self._open) > _MAX_CONNECTIONS:
                await _answer(
                    writer,
                    "503 Service Unavailable",
                    f"{_MAX_CONNECTIONS} connections are open; close some",
                )
            else:
                await self._exchange(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            # one side hung up, or said nothing for too long
            return
        finally:
            writer.close()

    async def _exchange(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            request = parse(await _within(reader.readuntil(b"\r\n\r\n")))
        except asyncio.LimitOverrunError:
            await _answer(
                writer,
                "431 Request Header Fields Too Large",
                f"more than {MAX_HEAD_BYTES} bytes of headers",
            )
            return
        except BadRequest as error:
            await _answer(writer, error.status, str(error))
            return
        found = await self._connect(request)
        if isinstance(found, str):
            self._count(request, "refused")
            await _answer(writer, "403 Forbidden", found)
            return
        self._count(request, "allowed")
        server_reader, server_writer = found
        try:
            if request.method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
                await _tunnel((reader, writer), (server_reader, server_writer))
            else:
                server_writer.write(request.head)
                await _copy(reader, server_writer, request.body_bytes)
                await _copy(server_reader, writer, None)
        finally:
            server_writer.close()

    async def _connect(self, request: Request) -> _Streams | str:
        """A connection to the server, or why there is none."""
        host = request.host
        port = request.port
        if not self._allow.permits(host, port):
            return f"{host}:{port} is not among the hosts that this sandbox may reach"
        try:
            addresses = await asyncio.wait_for(self._resolve(host, port), _CONNECT_S)
        except (OSError, TimeoutError, UnicodeError) as error:
            return f"{host} could not be resolved: {error}"
        allowed = [
            address for address in addresses if self._allow.permits_address(host, address)
        ]
        if not allowed:
            return f"{host} leads to no public address"
        problem = ""
        for address in allowed:
            try:
                return await asyncio.wait_for(
                    asyncio.open_connection(address, port), _CONNECT_S
                )
            except (OSError, TimeoutError) as error:
                problem = str(error) or "no answer"
        return f"{host}:{port} could not be reached: {problem}"

    def _count(self, request: Request, outcome: str) -> None:
        """Count a request; the first for a place is logged."""
        key = f"{request.host}:{request.port}", outcome
        if key not in self.counts:
            if len(self.counts) >= self._max_places:
                key = _OTHERS, outcome
            else:
                logger.info(
                    "a sandbox asked for %s %s: %s",
                    request.method,
                    *key,
                    extra={
                        "event": "sandbox_host_asked",
                        "host": key[0],
                        "outcome": outcome,
                    },
                )
        self.counts[key] += 1


async def _tunnel(
    one: _Streams,
    other: _Streams,
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(one[0], other[1], None))
            group.create_task(_copy(other[0], one[1], None))
    except* (OSError, TimeoutError) as gone:
        logger.debug("a tunnel ended: %s", gone.exceptions)


async def _copy(reader: StreamReader, writer: StreamWriter, num_bytes: int | None) -> None:
    """So many bytes, or all up to the end, which is passed on."""
    left = num_bytes
    while left is None or left:
        data = await _within(reader.read(_CHUNK if left is None else min(_CHUNK, left)))
        if not data:
            break
        writer.write(data)
        await _within(writer.drain())
        left = None if left is None else left - len(data)
    if num_bytes is None and writer.can_write_eof():
        writer.write_eof()


async def _within(action: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wait_for(action, _IDLE_S)


async def _answer(writer: StreamWriter, status: str, why: str) -> None:
    body = f"{why}\n".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await _within(writer.drain())
