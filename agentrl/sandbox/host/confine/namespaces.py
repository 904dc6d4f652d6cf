"""Namespaces: unshare, mount and drop capabilities by raw calls (namespaces(7), mount(2))."""

from __future__ import annotations

import ctypes
import os
import signal

from .libc import checked, libc

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
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
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
