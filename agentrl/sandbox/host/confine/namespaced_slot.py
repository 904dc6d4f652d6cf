"""Namespaced slot: a sandbox in its own namespaces, and fresh ones for each run.

Every sandbox sees the same paths, and only its own files behind them::

    /sandbox/store  one tmpfs, so that the kernel bounds the bytes and files of work and tmp
    together /sandbox/work   the session's folder, in the store /tmp            a folder of the
    store, emptied before each run; /dev/shm leads there /proc           the slot's own; empty in a
    run

The slot is the first process of its pid namespace, and an idle child the first of each run's, so
that the kernel ends every process with either of them, whatever it did to hide.
"""

from __future__ import annotations

import os
from typing import Any

from . import namespaces, uids
from .libc import prctl

PLACE = "/sandbox"
TEMP = "/tmp"
WORK = f"{PLACE}/work"
STORE = f"{PLACE}/store"
EMPTY = f"{PLACE}/empty"
_STORE_WORK = f"{STORE}/work"
_STORE_TEMP = f"{STORE}/tmp"
_PR_SET_DUMPABLE = 4
_FLAGS = namespaces.NO_SETUID | namespaces.NO_DEVICES


def fork_namespaced(uid: int | None) -> int:
    """Fork a process that is the first in user, pid, ipc and mount namespaces of its own.

    Args:
        uid: what it becomes before; None keeps this process's.

    Returns:
        Its pid here, of a child of the nearest subreaper; 0 in it, as ``fork`` does.

    Raises:
        OSError: the kernel refused.
    """
    said, say = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(said)
        _fork_once_more(uid, say)
        return 0
    os.close(say)
    with os.fdopen(said, "rb") as answers:
        answer = answers.read().decode(errors="replace")
    os.waitpid(between, 0)
    if not answer.isdigit():
        raise OSError(f"no namespaces for it: {answer or 'the process that makes them ended'}")
    return int(answer)


def _fork_once_more(uid: int | None, say: int) -> None:
    """Returns in the namespaced process only."""
    try:
        if uid is not None:
            uids.become(uid)
            # or the kernel hides its own /proc files from it
            prctl(_PR_SET_DUMPABLE, 1)
        namespaces.unshare_with_users(
            namespaces.NEW_PIDS | namespaces.NEW_IPC | namespaces.NEW_MOUNTS
        )
        pid = os.fork()
        if pid:
            os.write(say, str(pid).encode())
            os._exit(0)
    except BaseException as error:  # noqa: BLE001  the boundary: told to the caller
        os.write(say, str(error).encode())
        os._exit(1)
    os.close(say)


class SlotNamespaces:
    """The slot's side: made once by the slot, in the namespaces that :func:`fork_namespaced` gave
    it.

    Raises:
        OSError: the kernel refused a mount.
    """

    def __init__(self) -> None:
        namespaces.keep_mounts_private()
        namespaces.mount("tmpfs", STORE, _FLAGS, "size=1m,nr_inodes=16,mode=700")
        for path in (_STORE_WORK, _STORE_TEMP):
            os.mkdir(path, 0o700)
        namespaces.bind(_STORE_WORK, WORK)
        namespaces.mount("proc", "/proc", _FLAGS | namespaces.READ_ONLY | namespaces.NO_EXEC)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._bounds = (0, 0)
        self.firsts: dict[
            int, int
            # the first process of a run's pid namespace, by the pid of the run's
        ] = {}

    def bound(self, limits: dict[str, Any]) -> None:
        """Let the store hold what ``limits`` allow; what lies there already stays."""
        bounds = limits["disk_bytes"], limits["max_files"]
        if bounds == self._bounds:
            return
        held = os.statvfs(STORE)
        size = max(bounds[0], (held.f_blocks - held.f_bfree) * held.f_frsize)
        inodes = max(bounds[1], held.f_files - held.f_ffree)
        options = f"size={size},nr_inodes={inodes}"
        namespaces.mount(None, STORE, namespaces.REMOUNT | _FLAGS, options)
        self._bounds = bounds

    def fork(self) -> int:
        """Fork the process of a run, in a pid namespace whose first process is an idle child of
        this one.

        Raises:
            OSError: the kernel refused.
        """
        namespaces.unshare(namespaces.NEW_PIDS)
        try:
            first = namespaces.start_idle_child()
            pid = os.fork()
        except OSError:
            namespaces.have_children_in(self._own_pids)
            raise
        if pid:
            namespaces.have_children_in(self._own_pids)
            self.firsts[pid] = first
        return pid


def enter_run() -> None:
    """In the child of a run, before it gives up its capabilities: mounts and ipc of its own.

    Raises:
        OSError: the kernel refused.
    """
    namespaces.unshare(namespaces.NEW_MOUNTS | namespaces.NEW_IPC)
    namespaces.bind(_STORE_TEMP, TEMP)
    namespaces.bind(EMPTY, "/proc")
    namespaces.unmount(STORE)
