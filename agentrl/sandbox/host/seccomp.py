"""A seccomp filter built by hand: classic BPF over ``struct seccomp_data`` (seccomp(2)).

It refuses what Landlock does not see: sockets of every family, io_uring, tracing, namespaces,
mounts, keys, BPF, kernel modules, IPC objects that outlive their maker. A program built for another
architecture is killed, since its system call numbers mean something else.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
import sys
from dataclasses import dataclass

from .landlock import libc

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_RET_KILL_PROCESS, _RET_ERRNO, _RET_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LD_W_ABS, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_OFF_NR, _OFF_ARCH, _OFF_ARGS = 0, 4, 16
_X32_BIT = 0x40000000
_SCOPED_SIGNALS_ABI = 6  # of Landlock
NEWEST_ABI = sys.maxsize

# (AUDIT_ARCH, column of the tables below)
_ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "arm64": (0xC00000B7, 1)}

# name: (x86_64, aarch64); from the kernel's asm/unistd_64.h and asm-generic/unistd.h
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "personality": (135, 92),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    # every family: a pathname unix socket (a session bus, a container engine's) escapes Landlock
    "socket": (41, 198),
    "fanotify_init": (300, 262),
    "inotify_add_watch": (254, 27),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "uselib": (134, None),
    "modify_ldt": (154, None),
    "file_setattr": (469, 469),
}
# Landlock does not confine these; harmless behind a uid of its own, refused where the uid is the user's
_REFUSED_ON_SHARED_UID: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
}
# where a run may ask a proxy: it connects, and nobody connects to it
_REFUSED_TO_CLIENTS: dict[str, tuple[int | None, int | None]] = {
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}
# answered "no such system call", so that libc falls back to one whose arguments can be seen here
_ABSENT: dict[str, tuple[int | None, int | None]] = {"clone3": (435, 435)}

_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}
_F_SETOWN, _F_SETOWN_EX, _AF_UNIX = 8, 15, 1
_SO_SNDBUF, _SO_RCVBUF = 7, 8
_SOCKET, _AF_INET, _SOCK_STREAM, _SOCK_TYPE_MASK, _IPPROTO_TCP = (41, 198), 2, 1, 0xF, 6


@dataclass(frozen=True)
class _ArgRule:
    """Refuse a call by one argument's 32-bit word: ``(word & mask) == value``, or its opposite."""

    numbers: tuple[int | None, int | None]
    arg: int
    value: int
    mask: int = 0xFFFFFFFF
    refuse_equal: bool = True
    high_word: bool = False


def _arg_rules(*, own_uid: bool, abi: int, pid: int | None, proxied: bool) -> list[_ArgRule]:
    rules = [
        _ArgRule((56, 220), 0, 0, _NEW_NAMESPACES, refuse_equal=False),  # clone: no new namespaces
        _ArgRule((53, 199), 0, _AF_UNIX, refuse_equal=False),  # socketpair: unix only
        _ArgRule((54, 208), 2, _SO_SNDBUF),  # setsockopt: a buffer of the kernel's counts for no limit ...
        _ArgRule((54, 208), 2, _SO_RCVBUF),  # ... and may hold megabytes where it is made larger
        _ArgRule((302, 261), 0, 0, refuse_equal=False),  # prlimit64: itself only
        _ArgRule((203, 122), 0, 0, refuse_equal=False),  # sched_setaffinity
        _ArgRule((144, 119), 0, 0, refuse_equal=False),  # sched_setscheduler
        _ArgRule((142, 118), 0, 0, refuse_equal=False),  # sched_setparam
        _ArgRule((314, 274), 0, 0, refuse_equal=False),  # sched_setattr
        _ArgRule((141, 140), 0, 0, refuse_equal=False),  # setpriority: PRIO_PROCESS ...
        _ArgRule((141, 140), 1, 0, refuse_equal=False),  # ... of itself
    ]
    if proxied:  # TCP over IPv4 alone
        rules += [
            _ArgRule(_SOCKET, 0, _AF_INET, refuse_equal=False),
            _ArgRule(_SOCKET, 1, _SOCK_STREAM, _SOCK_TYPE_MASK, refuse_equal=False),
            _ArgRule(_SOCKET, 2, 0, ~_IPPROTO_TCP & 0xFFFFFFFF, refuse_equal=False),
        ]
    if not own_uid:  # utimensat by path; by descriptor (a null path) stays
        rules += [_ArgRule((280, 88), 1, 0, refuse_equal=False, high_word=high) for high in (False, True)]
    if pid is not None:  # the kernel does not scope signals: a process may signal itself only
        kills = ((62, 129), (200, 130), (234, 131), (129, 138), (297, 240))
        rules += [_ArgRule(numbers, 0, pid, refuse_equal=False) for numbers in kills]
        rules += [_ArgRule((72, 25), 1, command) for command in (_F_SETOWN, _F_SETOWN_EX)]
    if abi < 3:  # truncation by opening: O_TRUNC with O_RDONLY needs no write right before ABI 3
        flags = os.O_TRUNC | os.O_ACCMODE
        rules += [_ArgRule((2, None), 1, os.O_TRUNC, flags), _ArgRule((257, 56), 2, os.O_TRUNC, flags)]
    return rules


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k)


def supported() -> bool:
    """Whether this machine's system call numbers are known."""
    return platform.machine() in _ARCHES


def names_pid(abi: int) -> bool:
    """Whether the filter names the process that it is for: where Landlock cannot scope signals."""
    return abi < _SCOPED_SIGNALS_ABI


@functools.cache
def build_filter(*, own_uid: bool, abi: int, pid: int | None, proxied: bool = False) -> bytes:
    """The program, 8 bytes an instruction; made before a fork, it costs the child nothing.

    Args:
        own_uid: the code runs under a uid that nothing else uses.
        abi: the Landlock ABI, since an older one leaves more to this filter.
        pid: the process that will run the code, where :func:`names_pid`; else None.
        proxied: the code may make TCP connections; where they lead is for others to bound.
    """
    audit_arch, column = _ARCHES[platform.machine()]
    refused = [{name: numbers for name, numbers in _REFUSED.items() if not (proxied and name == "socket")}]
    if proxied:
        refused.append(_REFUSED_TO_CLIENTS)
    if not own_uid:
        refused.append(_REFUSED_ON_SHARED_UID)
    if abi < 3:
        refused.append({"truncate": (76, 45)})
    if names_pid(abi):
        refused.append({"pidfd_send_signal": (424, 424)})
    absent = [_ABSENT]
    if abi < 3:
        absent.append({"openat2": (437, 437)})

    eperm, enosys = _op(_RET, _RET_ERRNO | errno.EPERM), _op(_RET, _RET_ERRNO | errno.ENOSYS)
    load_number = _op(_LD_W_ABS, _OFF_NR)
    program = [_op(_LD_W_ABS, _OFF_ARCH), _op(_JEQ, audit_arch, 1, 0), _op(_RET, _RET_KILL_PROCESS), load_number]
    if column == 0:
        program += [_op(_JGE, _X32_BIT, 0, 1), _op(_RET, _RET_KILL_PROCESS)]
    for tables, answer in ((refused, eperm), (absent, enosys)):
        for table in tables:
            for numbers in table.values():
                if (number := numbers[column]) is not None:
                    program += [_op(_JEQ, number, 0, 1), answer]
    for rule in _arg_rules(own_uid=own_uid, abi=abi, pid=pid, proxied=proxied):
        if (number := rule.numbers[column]) is None:
            continue
        load_arg = _op(_LD_W_ABS, _OFF_ARGS + 8 * rule.arg + (4 if rule.high_word else 0))
        equal, different = (0, 1) if rule.refuse_equal else (1, 0)
        program += [_op(_JEQ, number, 0, 5), load_arg, _op(_AND, rule.mask)]
        program += [_op(_JEQ, rule.value, equal, different), eperm, load_number]
    program.append(_op(_RET, _RET_ALLOW))
    return b"".join(program)


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Put this process and its descendants under the filter; needs no_new_privs.

    Raises:
        OSError: the kernel refused the filter.
    """
    fprog = _Program(len(program) // 8, program)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(fprog), 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
