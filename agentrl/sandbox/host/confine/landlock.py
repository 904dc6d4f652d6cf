"""Landlock: rulesets by raw system calls (docs.kernel.org/userspace-api/landlock.html).

ABI 1 files, 2 renames across folders, 3 truncation, 4 TCP bind and connect, 5 device ioctls,
6 signals and abstract unix sockets. What the running kernel lacks is left out here and closed by
``seccomp`` where that can be done.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from ..proc import opened
from .libc import checked, libc

_SYS_CREATE_RULESET = 444
_SYS_ADD_RULE = 445
_SYS_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_RULE_NET_PORT = 2
# ABI 7: a hostile loop must not flood the audit log
_RESTRICT_SELF_LOG_SAME_EXEC_OFF = 1

_EXECUTE = 1
_WRITE_FILE = 2
_READ_FILE = 4
_READ_DIR = 8
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_ALL_V1 = (1 << 13) - 1
_SINCE = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_NET_ALL = 0b11
_CONNECT_TCP = 0b10
_SCOPE_ALL = 0b11
_SCOPE_SIGNAL = 0b10
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

# /dev/zero is memory that is mapped
_DEVICES = ("/dev/full", "/dev/random", "/dev/urandom")


def _call(number: int, *args: object) -> int:
    """A system call; a plain int is passed as a C int."""
    return checked(libc.syscall(ctypes.c_long(number), *args))


def abi_version() -> int:
    """The kernel's Landlock ABI; 0 where Landlock is absent or switched off."""
    try:
        return _call(_SYS_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def _create(abi: int, fs: int, net: int, scoped: int) -> int:
    attr = struct.pack("=QQQ", fs, net, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    return _call(_SYS_CREATE_RULESET, attr, ctypes.c_size_t(len(attr)), 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    with opened(path, os.O_PATH) as fd:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        _add_rule(ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, fd))


def _add_rule(ruleset: int, kind: int, rule: bytes) -> None:
    _call(_SYS_ADD_RULE, ruleset, kind, rule, 0)


def run_ruleset(
    abi: int,
    *,
    write: Iterable[str],
    read_exec: Iterable[str],
    read: Iterable[str],
    tcp_port: int | None = None,
) -> int:
    """The descriptor of the ruleset of one slot's children; a path that does not exist is left out.

    Args:
        abi: the Landlock ABI to use.
        write: folders in which everything but devices is allowed.
        read_exec: folders and files to read and execute.
        read: folders and files to read; devices that give bytes come with them.
        tcp_port: where TCP connections may lead (ABI 4), by whatever address; None allows none.
    """
    handled = _ALL_V1 | sum(right for since, right in _SINCE.items() if abi >= since)
    ruleset = _create(
        abi, handled, _NET_ALL if abi >= 4 else 0, _SCOPE_ALL if abi >= 6 else 0
    )
    # MAKE_CHAR, MAKE_BLOCK
    devices = (1 << 6) | (1 << 11)
    grants = [(path, handled & ~devices) for path in write]
    grants += [(path, _READ_FILE | _READ_DIR | _EXECUTE) for path in read_exec]
    grants += [(path, _READ_FILE | _READ_DIR) for path in (*read, *_DEVICES)]
    grants.append(("/dev/null", (_READ_FILE | _WRITE_FILE | _TRUNCATE) & handled))
    for path, rights in grants:
        if os.path.exists(path):
            _allow(ruleset, path, rights)
    if tcp_port is not None and abi >= 4:
        _add_rule(ruleset, _RULE_NET_PORT, struct.pack("=QQ", _CONNECT_TCP, tcp_port))
    return ruleset


def signal_ruleset(abi: int) -> int | None:
    """A ruleset that confines signals alone, for the slot itself; None where the kernel cannot."""
    return _create(abi, 0, 0, _SCOPE_SIGNAL) if abi >= 6 else None


def restrict_self(abi: int, ruleset: int) -> None:
    """Enter the ruleset's domain; there is no way back, for this process and its descendants."""
    flags = _RESTRICT_SELF_LOG_SAME_EXEC_OFF if abi >= 7 else 0
    _call(_SYS_RESTRICT_SELF, ruleset, flags)
