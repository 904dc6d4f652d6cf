"""Listening: the socket of a server, bound before its first request."""

from __future__ import annotations

import socket

__all__ = ["listening_socket"]

_WAITING = 1024
"""Connections that are not accepted yet."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A TCP socket that listens, without blocking.

    Args:
        host: an address of this machine or its name; empty for all addresses.
        port: 0 takes a free one.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0][0]
    # asyncio turns Nagle's delay off only where a socket names its protocol: without it an answer,
    # which is written in two pieces, waits 40 ms for the client's acknowledgement
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_WAITING)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening
