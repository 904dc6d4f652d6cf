"""Seccomp filter: classic BPF over ``struct seccomp_data`` (seccomp(2)), an allow list.

- A call that stands in no table answers ENOSYS, on which C libraries fall back; a known refusal
  answers EPERM.
- What Landlock does not see is closed here: sockets that can be named, modes and owners of files,
  tracing, namespaces, mounts, keys, modules, and memory that shows in no process (``syscalls`` says
  which).
- A program built for another architecture is killed, since its system call numbers mean something
  else.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import os
import platform
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import syscalls
from .libc import checked, libc

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_RET_KILL_PROCESS = 0x80000000
_RET_ERRNO = 0x00050000
_RET_ALLOW = 0x7FFF0000
_REFUSED = _RET_ERRNO | errno.EPERM
_ABSENT = _RET_ERRNO | errno.ENOSYS
_LD_W_ABS = 0x20
_JA = 0x05
_JEQ = 0x15
_JGE = 0x35
_AND = 0x54
_RET = 0x06
_OFF_NR = 0
_OFF_ARCH = 4
_OFF_ARGS = 16
# that a conditional jump reaches
_FARTHEST = 255
_X32_BIT = 0x40000000
# of Landlock
_SCOPED_SIGNALS_ABI = 6
NEWEST_ABI = sys.maxsize

# (AUDIT_ARCH, column of the tables)
_ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "arm64": (0xC00000B7, 1)}

# CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}
_NEW_NAMESPACES = 0x7E020080
_F_SETOWN = 8
_F_SETOWN_EX = 15
_AF_UNIX = 1
_AF_INET = 2
_SOCK_STREAM = 1
_SOCK_SEQPACKET = 5
_SOCK_TYPE = 0xF
_IPPROTO_TCP = 6
_SO_SNDBUF = 7
_SO_RCVBUF = 8
_SO_ZEROCOPY = 60
_MSG_FASTOPEN = 0x20000000
# the bit of MAP_SHARED is in MAP_SHARED_VALIDATE too
_MAP_SHARED = 0x01
_MAP_ANONYMOUS = 0x20
_MAP_HUGETLB = 0x40000
_MADV_COLLAPSE = 25
_PR_SET_THP_DISABLE = 41
# PDEATHSIG, DUMPABLE, KEEPCAPS, NAME, SECCOMP, CAPBSET_READ, TSC, SECUREBITS (read), TIMERSLACK,
# CHILD_SUBREAPER, NO_NEW_PRIVS, THP_DISABLE (read), CAP_AMBIENT, SVE, SPECULATION_CTRL, PAC,
# TAGGED_ADDR, SME, MDWE, SET_VMA (names)
_PRCTLS = (
    1, 2, 3, 4, 7, 8, 15, 16, 21, 22, 23, 25, 26, 27, 29, 30, 36, 37, 38, 39, 42, 47, 50, 51, 52,
    53, 54, 55, 56, 60, 61, 63, 64, 65, 66, 0x53564D41,
)  # fmt: skip
# TCGETS, TIOCGPGRP, TIOCOUTQ, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE,
# TCGETS2, FIGETBSZ, FICLONE, FICLONERANGE (into a file that is open for writing), FS_IOC_GETFLAGS,
# FS_IOC_FSGETXATTR, FS_IOC_FIEMAP
_IOCTLS = (
    0x5401, 0x540F, 0x5411, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460, 0x802C542A, 2,
    0x40049409, 0x4020940D, 0x80086601, 0x801C581F, 0xC020660B,
)  # fmt: skip
# all but leases, notifications of folders and hints about writing, which reach files that are open
# for reading
_FCNTLS = (*range(12), 15, 16, 36, 37, 38, 1025, 1027, 1030, 1031, 1032, 1033, 1034)
_OF_ITSELF_ALONE = (
    "prlimit64",
    "sched_setaffinity",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
)


@dataclass(frozen=True)
class _Rule:
    """Refuse a call by one argument's 32-bit word.

    Attributes:
        names: the calls.
        arg: which argument.
        values: what its word is compared with, under ``mask``.
        allow: the call is refused with any other value; else with one of these.
        answer: the error.
        high_word: the upper half of the argument instead of the lower.
    """

    names: tuple[str, ...]
    arg: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    allow: bool = False
    answer: int = errno.EPERM
    high_word: bool = False

    def code(self) -> bytes:
        """Instructions that return where the call is refused and go on behind themselves where it
        is not.
        """
        code = [_op(_LD_W_ABS, _OFF_ARGS + 8 * self.arg + (4 if self.high_word else 0))]
        if self.mask != 0xFFFFFFFF:
            code.append(_op(_AND, self.mask))
        # comparisons that follow
        for left in reversed(range(len(self.values))):
            value = self.values[-1 - left]
            if self.allow:
                code.append(_op(_JEQ, value, left + 1, 0))
            else:
                code.append(_op(_JEQ, value, left, 0 if left else 1))
        return b"".join([*code, _op(_RET, _RET_ERRNO | self.answer)])


_RULES = (
    _Rule(("clone",), 0, (0,), _NEW_NAMESPACES, allow=True),
    _Rule(_OF_ITSELF_ALONE, 0, (0,), allow=True),
    _Rule(("setpriority",), 0, (0,), allow=True),  # PRIO_PROCESS ...
    _Rule(("setpriority",), 1, (0,), allow=True),  # ... of itself
    # It is set before, and stays so.
    _Rule(("prctl",), 0, (_PR_SET_THP_DISABLE,)),
    _Rule(("prctl",), 0, _PRCTLS, allow=True, answer=errno.EINVAL),
    _Rule(("ioctl",), 1, _IOCTLS, allow=True, answer=errno.ENOTTY),
    _Rule(("fcntl",), 1, _FCNTLS, allow=True, answer=errno.EINVAL),
    # shared memory without a file shows in no process once it is unmapped but for a page
    _Rule(("mmap",), 3, (_MAP_SHARED | _MAP_ANONYMOUS,), _MAP_SHARED | _MAP_ANONYMOUS),
    _Rule(("mmap",), 3, (_MAP_HUGETLB,), _MAP_HUGETLB, answer=errno.ENOMEM),
    _Rule(("madvise",), 2, (_MADV_COLLAPSE,), answer=errno.EINVAL),
    # a datagram socket of a pair could be connected, or send to any address
    _Rule(("socketpair",), 0, (_AF_UNIX,), allow=True),
    _Rule(("socketpair",), 1, (_SOCK_STREAM, _SOCK_SEQPACKET), _SOCK_TYPE, allow=True),
    _Rule(("sendto",), 4, (0,), allow=True),
    _Rule(("sendto",), 4, (0,), allow=True, high_word=True),
    # connects, by an address in memory
    _Rule(("sendto", "sendmmsg"), 3, (_MSG_FASTOPEN,), _MSG_FASTOPEN),
    _Rule(("sendmsg",), 2, (_MSG_FASTOPEN,), _MSG_FASTOPEN),
    # a buffer of the kernel's counts for no limit, and may hold megabytes where it is made larger
    _Rule(("setsockopt",), 2, (_SO_SNDBUF, _SO_RCVBUF, _SO_ZEROCOPY)),
)  # fmt: skip
# over IPv4
_TCP_ALONE = (
    _Rule(("socket",), 0, (_AF_INET,), allow=True),
    _Rule(("socket",), 1, (_SOCK_STREAM,), _SOCK_TYPE, allow=True),
    _Rule(("socket",), 2, (0,), ~_IPPROTO_TCP & 0xFFFFFFFF, allow=True),
)
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
# by opening: O_TRUNC with O_RDONLY needs no write right before ABI 3
_NO_TRUNCATION = tuple(
    _Rule((name,), arg, (os.O_TRUNC,), os.O_TRUNC | os.O_ACCMODE)
    for name, arg in (("open", 1), ("openat", 2))
)


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k)


def supported() -> bool:
    """Whether this machine's system call numbers are known."""
    return platform.machine() in _ARCHES


def names_pid(abi: int) -> bool:
    """Whether the filter names the process that it is for: where Landlock cannot scope signals."""
    return abi < _SCOPED_SIGNALS_ABI


@functools.cache
def build_filter(
    *,
    own_uid: bool,
    abi: int,
    pid: int | None,
    proxied: bool = False,
    preallocates: bool = False,
) -> bytes:
    """The program, 8 bytes an instruction; made before a fork, it costs the child nothing.

    Args:
        own_uid: the code runs under a uid that nothing else uses.
        abi: the Landlock ABI, since an older one leaves more to this filter.
        pid: the process that will run the code, where :func:`names_pid`; else None.
        proxied: the code may make TCP connections; where they lead is for others to bound.
        preallocates: the code may take space of its file system before it writes there, since that
            is bounded; else libc falls back to writing.
    """
    audit_arch, column = _ARCHES[platform.machine()]
    rules = [*_RULES]
    numbers: syscalls.Table = {}
    answers: dict[str, int] = {}
    for table, answer in (
        (syscalls.ALLOWED, _RET_ALLOW),
        (syscalls.OWNERS, _RET_ALLOW if own_uid else _REFUSED),
        (syscalls.ATTRIBUTES, _RET_ERRNO | errno.ENOTSUP),
        (syscalls.REFUSED, _REFUSED),
        (syscalls.NAMED_SOCKETS, _REFUSED),
        (syscalls.UNCOPIED, _RET_ERRNO | errno.EINVAL),
    ):
        numbers |= table
        answers |= dict.fromkeys(table, answer)
    # libc then falls back to clone, whose flags can be seen here
    answers["clone3"] = _ABSENT
    if not preallocates:
        answers["fallocate"] = _RET_ERRNO | errno.EOPNOTSUPP
    if proxied:
        rules += _TCP_ALONE
        answers |= {"socket": _RET_ALLOW, "connect": _RET_ALLOW}
    # the kernel does not scope signals: a process may signal itself only
    if pid is not None:
        rules.append(_Rule(_SIGNALS, 0, (pid,), allow=True))
        rules.append(_Rule(("fcntl",), 1, (_F_SETOWN, _F_SETOWN_EX)))
    if names_pid(abi):
        answers["pidfd_send_signal"] = _REFUSED
    if abi < 3:
        rules += _NO_TRUNCATION
        answers |= {"truncate": _REFUSED, "openat2": _ABSENT}

    ends: dict[int, bytes] = {}
    for name, answer in answers.items():
        number = numbers[name][column]
        if number is not None:
            bounded = answer == _RET_ALLOW
            code = [rule.code() for rule in rules if bounded and name in rule.names]
            ends[number] = b"".join(code) + _op(_RET, answer)
    program = _search(_segments(ends, column))
    start = [
        _op(_LD_W_ABS, _OFF_ARCH),
        _op(_JEQ, audit_arch, 1, 0),
        _op(_RET, _RET_KILL_PROCESS),
    ]
    return b"".join([*start, _op(_LD_W_ABS, _OFF_NR), program])


def _segments(ends: Mapping[int, bytes], column: int) -> list[tuple[int, bytes]]:
    """Ranges of numbers with one end, each by its first: together they cover every number."""
    found = [
        (number, ends.get(number, _op(_RET, _ABSENT))) for number in range(max(ends) + 2)
    ]
    if column == 0:
        found.append((_X32_BIT, _op(_RET, _RET_KILL_PROCESS)))
    return [
        found[0],
        *(after for before, after in itertools.pairwise(found) if before[1] != after[1]),
    ]


def _search(segments: Sequence[tuple[int, bytes]]) -> bytes:
    """A binary search for the segment of the number that is loaded; every way through it ends in a
    return.
    """
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below = _search(segments[:middle])
    above = _search(segments[middle:])
    length = len(below) // 8
    if length <= _FARTHEST:
        return _op(_JGE, segments[middle][0], length, 0) + below + above
    return _op(_JGE, segments[middle][0], 0, 1) + _op(_JA, length) + below + above


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Put this process and its descendants under the filter; needs no_new_privs.

    Raises:
        OSError: the kernel refused the filter.
    """
    fprog = _Program(len(program) // 8, program)
    checked(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(fprog), 0, 0))
