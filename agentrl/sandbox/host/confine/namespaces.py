"""Namespaces: a sandbox in its own ones, fresh ones for each run, and the raw calls for both.

See namespaces(7) and mount(2).

Every sandbox sees the same paths, and only its own files behind them::

    /sandbox/store  one tmpfs: the kernel bounds the bytes and files of work and tmp together
    /sandbox/work   the session's folder, in the store
    /tmp            a folder of the store, emptied before each run; /dev/shm leads there
    /proc           the slot's own; empty in a run

The slot is the first process of its pid namespace, and an idle child the first of each run's, so
that the kernel ends every process with either of them, whatever it did to hide.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

from . import uids
from .libc import checked, libc, prctl

NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
NEW_USERS = 0x10000000
NEW_PIDS = 0x20000000
READ_ONLY = 1
NO_SETUID = 2
NO_DEVICES = 4
NO_EXEC = 8
REMOUNT = 32
_BIND = 4096
_RECURSIVE = 1 << 14
_PRIVATE = 1 << 18
_DETACH = 2
_CLONE_VM = 0x100
_CLONE_FILES = 0x400
_CAPABILITY_VERSION_3 = 0x20080522

_idle_stack = ctypes.create_string_buffer(1 << 15)


def unshare(kinds: int) -> None:
    """Leave the namespaces of these kinds for fresh ones; of pids, only later children of this
    process do.

    Raises:
        OSError: the kernel refused.
    """
    checked(libc.unshare(kinds), "unshare")


def unshare_with_users(kinds: int) -> None:
    """As :func:`unshare`, in a fresh user namespace as well, in which uid and gid are what they
    were and are alone.

    Raises:
        OSError: the kernel refused.
    """
    uid = os.getuid()
    gid = os.getgid()
    unshare(kinds | NEW_USERS)
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def have_children_in(pid_namespace: int) -> None:
    """Children from here on live in the pid namespace behind this descriptor.

    Raises:
        OSError: the kernel refused.
    """
    checked(libc.setns(pid_namespace, NEW_PIDS), "setns")


def mount(kind: str | None, target: str, flags: int = 0, options: str = "") -> None:
    """Mount a fresh file system, ``tmpfs`` or ``proc``, or with ``REMOUNT`` none: change the
    options of one.

    Raises:
        OSError: the kernel refused.
    """
    _mount(kind, target, kind, flags, options)


def bind(source: str, target: str) -> None:
    """Let ``target`` show the folder ``source``.

    Raises:
        OSError: the kernel refused.
    """
    _mount(source, target, None, _BIND, None)


def keep_mounts_private() -> None:
    """Nothing that is mounted from here on shows in another mount namespace.

    Raises:
        OSError: the kernel refused.
    """
    _mount(None, "/", None, _PRIVATE | _RECURSIVE, None)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None
) -> None:
    words = [
        None if word is None else word.encode() for word in (source, target, kind, options)
    ]
    result = libc.mount(*words[:3], ctypes.c_ulong(flags), words[3])
    checked(result, f"mount {kind or source or flags} on {target}")


def unmount(target: str) -> None:
    """Take a mount away, also one in use.

    Raises:
        OSError: the kernel refused.
    """
    checked(libc.umount2(target.encode(), _DETACH), f"unmount {target}")


def start_idle_child() -> int:
    """Start a child that sleeps for ever; its pid. As the first of a pid namespace, it takes all
    others with it.

    It shares this process's memory and descriptors (a copy would keep pipes open) and runs only
    ``pause(2)``, on a stack of its own, so that it costs a tenth of a fork. It takes no signal but
    SIGKILL, so that it never returns to that stack, which all of them share. The orphans that it
    inherits are reaped by the kernel.

    Raises:
        OSError: the kernel refused.
    """
    top = (ctypes.addressof(_idle_stack) + len(_idle_stack)) & ~0xF
    # the child's own; nothing ends here meanwhile
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        flags = _CLONE_VM | _CLONE_FILES | signal.SIGCHLD
        return checked(libc.clone(libc.pause, ctypes.c_void_p(top), flags, None), "clone")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, handler)


def count_processes_apart() -> bool:
    """Whether RLIMIT_NPROC counts a user namespace's processes apart from its user's others (Linux
    5.14).
    """
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (5, 14)


def drop_capabilities() -> None:
    """Give up every capability for ever; no program can give one back where no_new_privs is set.

    Raises:
        OSError: the kernel refused.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


PLACE = "/sandbox"
TEMP = "/tmp"
WORK = f"{PLACE}/work"
STORE = f"{PLACE}/store"
EMPTY = f"{PLACE}/empty"
_STORE_WORK = f"{STORE}/work"
_STORE_TEMP = f"{STORE}/tmp"
_PR_SET_DUMPABLE = 4
_FLAGS = NO_SETUID | NO_DEVICES


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
        raise OSError(
            f"no namespaces for it: {answer or 'the process that makes them ended'}"
        )
    return int(answer)


def _fork_once_more(uid: int | None, say: int) -> None:
    """Returns in the namespaced process only."""
    try:
        if uid is not None:
            uids.become(uid)
            # or the kernel hides its own /proc files from it
            prctl(_PR_SET_DUMPABLE, 1)
        unshare_with_users(NEW_PIDS | NEW_IPC | NEW_MOUNTS)
        pid = os.fork()
        if pid:
            os.write(say, str(pid).encode())
            # This one is only a step: the child is the first process of the new pid namespace.
            os._exit(0)
    except BaseException as error:  # noqa: BLE001
        # The boundary: the caller is told.
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
        keep_mounts_private()
        mount("tmpfs", STORE, _FLAGS, "size=1m,nr_inodes=16,mode=700")
        for path in (_STORE_WORK, _STORE_TEMP):
            os.mkdir(path, 0o700)
        bind(_STORE_WORK, WORK)
        mount("proc", "/proc", _FLAGS | READ_ONLY | NO_EXEC)
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
        mount(None, STORE, REMOUNT | _FLAGS, options)
        self._bounds = bounds

    def fork(self) -> int:
        """Fork the process of a run, in a pid namespace whose first process is an idle child of
        this one.

        Raises:
            OSError: the kernel refused.
        """
        unshare(NEW_PIDS)
        try:
            first = start_idle_child()
            pid = os.fork()
        except OSError:
            have_children_in(self._own_pids)
            raise
        if pid:
            have_children_in(self._own_pids)
            self.firsts[pid] = first
        return pid


def enter_run() -> None:
    """In the child of a run, before it gives up its capabilities: mounts and ipc of its own.

    Raises:
        OSError: the kernel refused.
    """
    unshare(NEW_MOUNTS | NEW_IPC)
    bind(_STORE_TEMP, TEMP)
    bind(EMPTY, "/proc")
    unmount(STORE)
