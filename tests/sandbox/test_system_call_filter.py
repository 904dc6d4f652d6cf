"""The filter of system calls as a program: its answer to every number, and to arguments. Nothing
here installs it.
"""

from __future__ import annotations

import errno
import itertools
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.sandbox.host.confine import seccomp, syscalls

TABLES = (
    syscalls.ALLOWED,
    syscalls.OWNERS,
    syscalls.ATTRIBUTES,
    syscalls.REFUSED,
    syscalls.NAMED_SOCKETS,
    syscalls.UNCOPIED,
)
INCLUDE = Path("/usr/include")
HEADERS = (INCLUDE / "x86_64-linux-gnu/asm/unistd_64.h", INCLUDE / "asm-generic/unistd.h")
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def answer(program: bytes, number: int, *args: int, arch: int = 0xC000003E) -> int:
    """What classic BPF returns for a system call, by the six instructions that the filter uses."""
    data = struct.pack(
        "=iIQ6Q",
        number if number < 2**31 else number - 2**32,
        arch,
        0,
        *(*args, *[0] * (6 - len(args))),
    )
    code = list(struct.iter_unpack("=HBBI", program))
    at = word = 0
    while True:
        op, jt, jf, k = code[at]
        at += 1
        match op:
            case 0x20:
                (word,) = struct.unpack_from("=I", data, k)
            case 0x54:
                word &= k
            case 0x05:
                at += k
            case 0x15:
                at += jt if word == k else jf
            case 0x35:
                at += jt if word >= k else jf
            case 0x06:
                return k
            case unknown:
                raise AssertionError(f"instruction {unknown:#x}")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    seccomp.build_filter.cache_clear()
    yield seccomp.build_filter(own_uid=True, abi=7, pid=None, preallocates=True)
    seccomp.build_filter.cache_clear()


def test_no_number_stands_for_two_calls() -> None:
    for column in (0, 1):
        numbers = [
            row[column]
            for table in TABLES
            for row in table.values()
            if row[column] is not None
        ]
        assert len(numbers) == len(set(numbers))


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    seen = 0
    for column, path in enumerate(HEADERS):
        # a machine has those of its own architecture, and the generic ones that aarch64 uses
        if not path.exists():
            continue
        pairs = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", path.read_text())
        numbers = {name: int(number) for name, number in pairs}
        for table in TABLES:
            for name, row in table.items():
                if name in numbers:
                    seen += 1
                    assert row[column] == numbers[name], name
    assert seen > 200, "apt-get install -y linux-libc-dev"


def test_every_call_of_the_tables_is_answered_as_its_table_says(program: bytes) -> None:
    by_args = {name for rule in seccomp._RULES for name in rule.names} | {"clone3"}
    errors = (0, 0, errno.ENOTSUP, errno.EPERM, errno.EPERM, errno.EINVAL)
    answers = [ERRNO | error if error else ALLOW for error in errors]
    for table, expected in zip(TABLES, answers, strict=True):
        for name, (number, _) in table.items():
            if number is not None and name not in by_args:
                assert answer(program, number) == expected, name


def test_a_number_that_stands_in_no_table_does_not_exist(program: bytes) -> None:
    known = {row[0] for table in TABLES for row in table.values()}
    for number in itertools.chain(range(700), (2**30 - 1,)):
        if number not in known:
            assert answer(program, number) == ERRNO | errno.ENOSYS, number


def test_calls_of_another_architecture_or_of_x32_are_killed(program: bytes) -> None:
    assert answer(program, 1, arch=0x40000003) == KILL
    assert answer(program, 0x40000000 | 39) == KILL
    assert answer(program, 2**32 - 1) == KILL


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("mmap", (0, 4096, 3, 0x22), ALLOW),  # private, anonymous
        ("mmap", (0, 4096, 3, 0x01), ALLOW),  # shared, of a file
        ("mmap", (0, 4096, 3, 0x21), ERRNO | errno.EPERM),
        ("mmap", (0, 4096, 3, 0x23), ERRNO | errno.EPERM),  # MAP_SHARED_VALIDATE
        ("mmap", (0, 4096, 3, 0x40022), ERRNO | errno.ENOMEM),  # MAP_HUGETLB
        ("madvise", (0, 4096, 4), ALLOW),
        ("madvise", (0, 4096, 25), ERRNO | errno.EINVAL),  # MADV_COLLAPSE
        ("prctl", (15,), ALLOW),  # PR_SET_NAME
        ("prctl", (41, 0), ERRNO | errno.EPERM),  # PR_SET_THP_DISABLE
        ("prctl", (35,), ERRNO | errno.EINVAL),  # PR_SET_MM
        ("prctl", (0x59616D61,), ERRNO | errno.EINVAL),  # PR_SET_PTRACER
        ("socketpair", (1, 1), ALLOW),
        (
            "socketpair",
            (1, 5 | 0x80800),
            ALLOW,
        ),  # SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK
        ("socketpair", (1, 2), ERRNO | errno.EPERM),
        (
            "socketpair",
            (1, 3),
            ERRNO | errno.EPERM,
        ),  # SOCK_RAW, which the kernel takes for SOCK_DGRAM
        ("socketpair", (2, 1), ERRNO | errno.EPERM),
        ("sendto", (0, 0, 0, 0, 0), ALLOW),
        ("sendto", (0, 0, 0, 0, 0x7F00_0000_1000), ERRNO | errno.EPERM),
        (
            "sendto",
            (0, 0, 0, 0, 0x7F00_0000_0000),
            ERRNO | errno.EPERM,
        ),  # the lower half alone is null
        ("sendto", (0, 0, 0, 0x2000_0000, 0), ERRNO | errno.EPERM),  # MSG_FASTOPEN
        ("sendmsg", (0, 0, 0x2000_0000), ERRNO | errno.EPERM),
        ("clone", (17,), ALLOW),
        ("clone", (0x1000_0011,), ERRNO | errno.EPERM),  # CLONE_NEWUSER
        ("clone3", (), ERRNO | errno.ENOSYS),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), ERRNO | errno.ENOTTY),  # TIOCSTI
        ("ioctl", (0, 0x40086602), ERRNO | errno.ENOTTY),  # FS_IOC_SETFLAGS
        ("fcntl", (0, 4), ALLOW),
        ("fcntl", (0, 1024), ERRNO | errno.EINVAL),  # F_SETLEASE
        ("fcntl", (0, 1026), ERRNO | errno.EINVAL),  # F_NOTIFY
        ("setsockopt", (0, 1, 7), ERRNO | errno.EPERM),  # SO_SNDBUF
        ("setsockopt", (0, 1, 2), ALLOW),
        ("setpriority", (0, 0), ALLOW),
        ("setpriority", (0, 1), ERRNO | errno.EPERM),
        ("setpriority", (2, 0), ERRNO | errno.EPERM),
    ],
)
def test_arguments_decide(
    program: bytes, name: str, args: tuple[int, ...], expected: int
) -> None:
    number, _ = syscalls.ALLOWED[name]
    assert number is not None
    assert answer(program, number, *args) == expected


def test_modes_and_owners_are_refused_in_every_way_where_the_uid_is_the_users(
    program: bytes,
) -> None:
    shared = seccomp.build_filter(own_uid=False, abi=7, pid=None)
    for name, (number, _) in syscalls.OWNERS.items():
        if number is not None:
            assert answer(shared, number) == ERRNO | errno.EPERM, name
            assert answer(program, number) == ALLOW, name


def test_a_proxy_opens_connections_over_tcp_alone(program: bytes) -> None:
    proxied = seccomp.build_filter(own_uid=True, abi=7, pid=None, proxied=True)
    numbers = {name: row[0] for name, row in syscalls.NAMED_SOCKETS.items()}
    assert (
        answer(proxied, numbers["socket"], 2, 1, 6)
        == answer(proxied, numbers["connect"])
        == ALLOW
    )
    for args in ((2, 2, 0), (1, 1, 0), (10, 1, 6), (2, 3, 6)):
        assert answer(proxied, numbers["socket"], *args) == ERRNO | errno.EPERM
    for name in ("bind", "listen", "accept", "accept4"):
        assert answer(proxied, numbers[name]) == ERRNO | errno.EPERM
