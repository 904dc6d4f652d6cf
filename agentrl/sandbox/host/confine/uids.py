"""Uids: a reserved block that nothing else on this machine uses, one uid a sandbox."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

BLOCK = 1024
# sandboxes of one host, each with a uid of the block
SLOTS = 1000
NONE_TO_SPARE = (
    "runs as root, and this user namespace has no other uids to run the code under; run agentrl "
    "as another user, or in a container that was given more uids"
)
_FIRST = 1 << 30
_LAST = (1 << 31) - 1
_FIRST_SMALL = 20_000
_TRIES = 64


def reserve() -> tuple[int, socket.socket] | None:
    """A block of ``BLOCK`` uids that no other host in this network namespace uses.

    The block is held by an abstract socket's name, which the kernel frees with the socket.

    Returns:
        The first uid and what holds the block; None where this user namespace has no uids to spare.
    """
    with open("/proc/self/uid_map") as file:
        mapped = [tuple(map(int, line.split())) for line in file]
    end = max(inside + count for inside, _, count in mapped)
    first, last = (_FIRST, _LAST) if end > _LAST else (_FIRST_SMALL, end)
    blocks = (last - first) // BLOCK
    for _ in range(_TRIES if blocks > 0 else 0):
        block = int.from_bytes(os.urandom(4), "big") % blocks
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            reservation.bind(f"\0agentrl-sandbox-uids-{block}")
        except OSError:
            reservation.close()
            continue
        return first + block * BLOCK, reservation
    return None


def first_mapped() -> int | None:
    """The first uid of a block that this user namespace was given; None where it has no block."""
    with open("/proc/self/uid_map") as file:
        inside, _, count = map(int, file.readline().split())
    return inside if count >= BLOCK else None


def become(uid: int) -> None:
    """Give up this process's uid, gid and groups for ever; called as root.

    Raises:
        OSError: the kernel refused.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def end_all(uid: int) -> None:
    """SIGKILL every process of a reserved uid, in one step that no fork escapes; called as root."""
    pid = os.fork()
    if pid == 0:
        try:
            become(uid)
            if os.getresuid() == (uid, uid, uid) and uid >= _FIRST_SMALL:
                os.kill(-1, signal.SIGKILL)
        finally:
            # SIGKILL to -1 spares its sender. Nothing above this frame may run twice.
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
