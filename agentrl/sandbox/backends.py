"""Backends: how each is built, and the probe that measures its guarantees.

A backend's specification is an opaque value here, which its factory understands. Every attempt of
the probe is harmless where it succeeds: files are opened and not written, signals are number 0.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentrl.errors import AgentRLError, ConfigError, SandboxError
from agentrl.types.user_code.load import load_function

from .guarantees import BackendReport
from .interface import Sandbox

_PROBE = r"""
import ctypes, errno, fcntl, json, os, socket, sys, tempfile, time

canary, owner, owner_uid, limits, port = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)

def refused(*actions):
    for action in actions:
        try:
            action()
        except (OSError, MemoryError):
            continue
        return False
    return True

def call(number, *args):
    if libc.syscall(number, *args) < 0 and ctypes.get_errno() == errno.EPERM:
        raise PermissionError

def sock(family, kind=socket.SOCK_STREAM):
    return lambda: socket.socket(family, kind)

def reads(path):
    return lambda: open(path, "rb").close()

def bounded(path):
    size = os.statvfs(path)
    if size.f_blocks * size.f_frsize > limits["disk_bytes"]:
        return False
    return 0 < size.f_files <= limits["max_files"]

def serve():
    with socket.socket() as listener:
        listener.listen()

# what a sandbox with a proxy may not do with the sockets that it gets; without one it gets none
places = (("127.0.0.1", port), ("1.1.1.1", 80))
reach = [lambda a=address: socket.create_connection(a, 1) for address in places]
out = [*reach, serve] if port else [sock(socket.AF_INET)]
lock = open("stray", "w")
fcntl.flock(lock, fcntl.LOCK_EX)  # held for as long as a process of this run lives
listing = os.path.dirname(canary)
held = {
    "files": refused(
        reads(canary), lambda: os.listdir(listing), lambda: open(listing + "/made", "xb"),
        lambda: os.mkdir(listing + "/folder"),
        lambda: open("/proc/sys/kernel/core_pattern", "r+b").close(),
    ),
    "secrets": refused(
        *(reads(f"/proc/{pid}/{n}") for pid in (owner, os.getppid()) for n in ("environ", "mem"))
    ),
    "network": refused(*out) and refused(
        sock(socket.AF_INET6), sock(socket.AF_INET, socket.SOCK_DGRAM), sock(socket.AF_UNIX),
        sock(40), sock(16, socket.SOCK_RAW), sock(17, socket.SOCK_RAW),
        lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(
            b"", listing + "/datagrams"
        ),
    ),
    "processes": refused(lambda: os.kill(owner, 0), lambda: os.kill(os.getppid() or owner, 0)),
    "kernel": refused(lambda: call(425, 1, None), lambda: call(438, -1, 0, 0))
    and libc.unshare(0x10000000) != 0 and libc.ptrace(0x4206, owner, 0, 0) != 0,
    "memory": refused(lambda: bytearray(limits["memory_bytes"] * 5 // 4)),
    "user": os.getuid() not in (0, owner_uid),
    "disk": bounded(".") and bounded(tempfile.gettempdir()),
}
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2):
        os.close(fd)
    time.sleep(30)
    os._exit(0)
print(json.dumps(held))
"""
# memory that is mapped, touched and unmapped again but for a page of it
_HOARD = r"""
import ctypes, os, sys, time

size, area = int(sys.stdin.read()), 2**24
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def hoard(flags, path=None):
    held = 0
    while held < size:
        fd = -1 if path is None else os.open(path, os.O_RDONLY)
        at = libc.mmap(None, area, 1, flags, fd, 0)
        if path is not None:
            os.close(fd)
        if at in (None, ctypes.c_void_p(-1).value):
            return
        libc.memchr(at, 1, area)
        libc.munmap(at + 4096, area - 4096)
        held += area
    print("HELD", flush=True)

try:
    hoard(0x21)  # MAP_SHARED | MAP_ANONYMOUS
    hoard(0x01, "/dev/zero")
except OSError:
    pass
page = ctypes.create_string_buffer(4096)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(page), 4096)
# vmsplice: a page in a pipe keeps its huge page
number = 278 if os.uname().machine == "x86_64" else 75
if libc.prctl(42, 0, 0, 0, 0) != 1:
    if libc.syscall(number, os.pipe()[1], vector, ctypes.c_size_t(1), 1) > 0:
        print("HELD", flush=True)
"""
_HOARD_LIMIT_BYTES = 64 * 2**20
_LOOK_FOR_STRAY = (
    "import fcntl\nfcntl.flock(open('stray', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
)


async def measure(sandbox: Sandbox, *, proxied: bool = False) -> frozenset[str]:
    """Try every guarantee in ``sandbox``; those that held.

    Args:
        sandbox: fresh; the caller closes it.
        proxied: some hosts may be reached, so that there are sockets.

    Raises:
        SandboxError: the probe itself did not run to its end.
    """
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-probe-") as folder,
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        os.chmod(folder, 0o755)
        datagrams.bind(os.path.join(folder, "datagrams"))
        os.chmod(os.path.join(folder, "datagrams"), 0o777)
        canary = os.path.join(folder, "canary")
        with open(canary, "w") as file:
            file.write("a file that the code must not read")
        os.chmod(canary, 0o644)
        port = own.getsockname()[1] if proxied else None
        told = [canary, os.getpid(), os.getuid(), sandbox.limits.model_dump(), port]
        result = await sandbox.run(_PROBE, stdin=json.dumps(told).encode())
    if result.status != "ok":
        said = result.stderr.decode(errors="replace").strip()
        raise SandboxError(
            f"the probe of the sandbox ended with {result.status} {result.detail}: {said[-500:]}"
        )
    held = json.loads(result.stdout)
    alone = await sandbox.run(_LOOK_FOR_STRAY)
    held["memory"] = held["memory"] and await _bounds_what_is_unmapped(sandbox)
    # else one outlived its run
    held["processes"] = held["processes"] and alone.status == "ok"
    return frozenset(name for name, holds in held.items() if holds)


async def _bounds_what_is_unmapped(sandbox: Sandbox) -> bool:
    """Whether memory that no process shows is refused, or ends the run that holds it."""
    limits = sandbox.limits.replace(memory_bytes=_HOARD_LIMIT_BYTES)
    result = await sandbox.run(
        _HOARD, stdin=str(2 * _HOARD_LIMIT_BYTES).encode(), limits=limits
    )
    return b"HELD" not in result.stdout


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table.

    Attributes:
        factory: ``module:function`` of a ``BackendFactory``, imported when it is needed.
        isolates: whether it is tried at all; one that does not is never taken by ``auto``.
        images: whether it runs in images (``SandboxSpec.image``).
        network: whether it can let code reach chosen hosts, and no others (``NetworkSpec.allow``).
    """

    factory: str
    isolates: bool = True
    images: bool = False
    network: bool = False


# cheapest execution first: where two hold the same guarantees, ``auto`` takes the first
BACKENDS = MappingProxyType(
    {
        "landlock": Backend("agentrl.sandbox.forkserver.local:landlock"),
        "bubblewrap": Backend("agentrl.sandbox.forkserver.local:bubblewrap", network=True),
        "docker": Backend("agentrl.sandbox.docker.backend:docker", images=True),
        "unsafe": Backend("agentrl.sandbox.forkserver.local:unsafe", isolates=False),
    }
)

logger = logging.getLogger(__name__)

_reports: dict[Hashable, BackendReport] = {}
# Guards _reports, and lets one thread at a time probe: a second caller waits for the report.
_lock = threading.Lock()


def factory_of(name: str) -> Callable[[Any], Sandbox]:
    """The function that builds sandboxes of this backend.

    Raises:
        ConfigError: a user's backend cannot be imported, or is no function.
    """
    reference = BACKENDS[name].factory if name in BACKENDS else name
    return load_function(reference, None, _broken, "(SandboxSpec)")


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"SandboxSpec.backend{rule}", fields=["SandboxSpec.backend"])


def report_on(backend: str, spec: Hashable, *, proxied: bool) -> BackendReport:
    """What ``backend`` guarantees here, found out by running code; remembered unless it failed.

    Args:
        backend: its name.
        spec: what its factory is given; equal ones share a report.
        proxied: whether the code may reach some hosts.

    Raises:
        ConfigError: a setting is to blame, not the machine.
    """
    with _lock:
        report = _reports.get(spec)
        if report is None:
            report = _try(backend, spec, proxied=proxied)
            # else a later call may succeed: the machine may be busy
            if report.problem is None:
                logger.info(
                    "sandbox %s",
                    report,
                    extra={"event": "sandbox_probed", "backend": backend},
                )
                _reports[spec] = report
        return report


def _try(backend: str, spec: Hashable, *, proxied: bool) -> BackendReport:
    row = BACKENDS.get(backend)
    if row is not None and not row.isolates:
        return BackendReport(backend, notes="limits only")

    async def attempt() -> BackendReport:
        async with factory_of(backend)(spec) as sandbox:
            held = await measure(sandbox, proxied=proxied)
            return BackendReport(backend, held, notes=sandbox.notes)

    try:
        # the caller's thread may run an event loop already
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, attempt()).result()
    except ConfigError:
        raise
    except AgentRLError as error:
        return BackendReport(backend, problem=str(error))
