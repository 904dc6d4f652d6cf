"""Proxy request: reads a request's head, judges it and writes another for its server.

RFC 9112; RFC 9110, sec. 9.3.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from .allow import is_host, split_port

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
        raise BadRequest("400 Bad Request", f"{version[:_MAX_ECHO]!r} is not served; use HTTP/1.1")
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
            "400 Bad Request", f"a proxy is asked for http://host/path or by CONNECT, {asked}"
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
        if not colon or not name or name != name.strip() or any(bad in line for bad in "\r\n\0"):
            raise BadRequest("400 Bad Request", "a header is malformed")
        if plain == "transfer-encoding":
            raise BadRequest("411 Length Required", "a body needs a Content-Length here")
        if plain == "content-length":
            lengths.add(value.strip())
        if plain not in _OWN_HEADERS and not plain.startswith("proxy-"):
            kept.append(line)
    if len(lengths) > 1 or not all(length.isascii() and length.isdigit() for length in lengths):
        raise BadRequest("400 Bad Request", "the Content-Length is malformed")
    if any(len(length) > _MAX_LENGTH_DIGITS for length in lengths):
        raise BadRequest(
            "413 Content Too Large",
            f"a Content-Length has at most {_MAX_LENGTH_DIGITS} digits here",
        )
    return kept, int(next(iter(lengths), "0"))


def _written(host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port == 80 else f"{name}:{port}"
