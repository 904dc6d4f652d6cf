"""Machine: sockets to listen on, the search path of programs, and the ends of their output."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys

from agentrl.errors import MachineError

_WAITING = 1024
"""Connections that are not accepted yet."""


def listening_socket(host: str, port: int, who: str) -> socket.socket:
    """A TCP socket that listens, without blocking.

    Args:
        host: an address of this machine or its name; empty for all addresses.
        port: 0 takes a free one.
        who: listens, for the message.

    Raises:
        MachineError: the address cannot be listened on.
    """
    try:
        return _listening(host, port)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        mend = (
            "choose another port, or 0 for a free one"
            if taken
            else "set --host to an address of this machine, or 0.0.0.0 for all of them"
        )
        raise MachineError(
            f"{who} cannot listen on {host}:{port}: {error.strerror or error}; {mend}"
        ) from error


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0][0]
    # asyncio turns Nagle's delay off only where a socket names its protocol: without it an answer,
    # which is written in two pieces, waits 40 ms for the client's acknowledgement
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A server that is started again gets its port, which the old one's connections still hold.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_WAITING)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


def program_path() -> str:
    """``PATH`` with this interpreter's folder first, so that ``python`` is this one."""
    return os.pathsep.join(
        [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    )


_KEPT_BYTES = 2000


async def keep_end(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Reads a stream to its end, so that the program never blocks, and keeps its last bytes."""
    while chunk := await stream.read(65536):
        kept += chunk
        del kept[:-_KEPT_BYTES]


def told_end(errors: bytearray) -> str:
    """What a program's standard error ends with, in words; empty where it has none."""
    text = errors.decode(errors="replace").strip()
    return f"its standard error ends with: {text}" if text else ""
