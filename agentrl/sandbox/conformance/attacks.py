"""Attacks: one or more on each guarantee.

An attack that succeeds prints BREACH, and does no harm.

Files are opened for writing and nothing is written, signals are number 0 or SIGCONT, bombs stop by
themselves at a size that any machine bears.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from agentrl.sandbox.interface import Limits, Sandbox

from .bombs import (
    BEAT,
    BUFFER_BOMB,
    BUFFERS_OF_MANY,
    DISK_FILL,
    FORGERY,
    FORK_BOMB,
    GREED,
    HEAR,
    INODE_FILL,
    LEAVE,
    LOOK_FOR_BEAT,
    LOOK_FOR_TRACE,
    MEMORY_BOMB,
    PIPE_HOARD,
    PRIVATE_MEMORY,
    SAY,
    SHARED_HOARD,
    SHARED_MEMORY,
    SWAPPER,
    THEFT,
    ZERO_HOARD,
)
from .programs import FILES, KERNEL, NETWORK, PROCESSES, SECRETS, USER, prelude
from .verdict import Check, Factory, Run, Step, checks, expect, held, one_of, step, steps

_REMOVALS = 4
_SMALL = Limits(wall_s=20, memory_bytes=96 * 2**20, processes=16)
_DISK = _SMALL.replace(file_bytes=4 * 2**20, disk_bytes=16 * 2**20)


async def _attack(code: str, factory: Factory) -> None:
    """Run one program beside a target of each kind, and see that none was reached."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-target-"))
        os.chmod(folder, 0o777)
        canary = os.path.join(folder, "canary")
        with open(canary, "w") as file:
            file.write("canary")
        os.chmod(canary, 0o666)
        # not on every file system and machine
        with suppress(OSError, AttributeError):
            os.setxattr(canary, "user.agentrl", b"canary")
        before = _state(canary)
        made = [
            f"{place}/made-by-{os.path.basename(folder)}"
            for place in ("/tmp", "/dev/shm", "/var/tmp")
        ]
        for path in made:
            stack.callback(Path(path).unlink, missing_ok=True)
        target: dict[str, object] = {"canary": canary, "folder": folder, "made": made}
        target |= {"owner": os.getpid(), "owner_uid": os.getuid()}
        target |= _listeners(stack, folder)
        async with factory() as sandbox:
            result = await sandbox.run(prelude(json.dumps(target)) + code, limits=_SMALL)
            expect(held(result.stdout), "the attack must fail", result)
            expect(b"DONE" in result.stdout, "the attack must run to its end", result)
            expect(
                result.status in ("ok", "killed"),
                "and be no failure of the sandbox",
                result,
            )
        seen = [path for path in made if os.path.exists(path)]
        expect(not seen, "files of its own show nowhere else", seen)
        left = set(os.listdir(folder))
        expect(
            left == {"canary", "socket", "datagrams"},
            "the target's folder is untouched",
            left,
        )
        after = _state(canary)
        expect(after == before, "the target file is untouched", after)


def _state(path: str) -> tuple[float, ...]:
    found = os.stat(path)
    return found.st_mode, found.st_size, found.st_mtime_ns


def _listeners(stack: ExitStack, folder: str) -> dict[str, object]:
    """A socket of each kind that code could reach, by the name that the programs know it by."""
    abstract = f"agentrl-target-{os.getpid()}-{os.urandom(4).hex()}"
    reached: dict[str, object] = {}
    for name, kind, family, address in (
        ("unix", socket.SOCK_STREAM, socket.AF_UNIX, f"{folder}/socket"),
        ("datagrams", socket.SOCK_DGRAM, socket.AF_UNIX, f"{folder}/datagrams"),
        ("abstract", socket.SOCK_STREAM, socket.AF_UNIX, f"\0{abstract}"),
        (
            "abstract_datagrams",
            socket.SOCK_DGRAM,
            socket.AF_UNIX,
            f"\0{abstract}-datagrams",
        ),
        ("tcp", socket.SOCK_STREAM, socket.AF_INET, ("127.0.0.1", 0)),
        ("udp", socket.SOCK_DGRAM, socket.AF_INET, ("127.0.0.1", 0)),
    ):
        hidden = address[0] == "\0"
        reached[name] = address[1:] if hidden else address
        if hidden and os.uname().sysname != "Linux":
            continue
        sock = stack.enter_context(socket.socket(family, kind))
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen()
        if family == socket.AF_INET:
            reached[name] = sock.getsockname()[1]
        elif not hidden:
            os.chmod(str(address), 0o777)
    return reached


def _bomb(
    rule: str,
    program: str,
    *statuses: str,
    limits: Limits = _SMALL,
) -> Step:
    """A run that must end with one of these statuses and print no BREACH."""
    wanted = {"stdout": held} | ({"status": one_of(*statuses)} if statuses else {})
    return step(rule, program, wanted, limits=limits)


_GOES_ON = step("the sandbox goes on", "print(1)", {"stdout": b"1\n"})
_FORKS = step(
    "others fork", "import os\nos.wait() if os.fork() else None", {"status": "ok"}
)


async def _fork_bomb(factory: Factory) -> None:
    async with factory() as sandbox, factory() as neighbour:
        rule = "no more processes than the limit live"
        await _bomb(rule, FORK_BOMB, "ok", "killed")(sandbox)
        await _FORKS(sandbox)
        await _FORKS(neighbour)


def _memory_bomb(made: str) -> Run:
    """Many processes that each stay below the limit, together far above it."""
    statuses = ("ok", "oom", "timeout", "error", "killed")
    program = MEMORY_BOMB.replace("MADE", made)
    return steps(_bomb("all processes together are bounded", program, *statuses), _GOES_ON)


async def _hoard(program: str, factory: Factory) -> None:
    """What a process unmapped and still keeps counts, and costs nobody else anything."""
    hoard = _bomb("memory that no process shows is bounded", program, "ok", "oom", "killed")
    wait = "import time\ntime.sleep(2)\nprint('beside')"
    beside = step("a neighbour's run goes on", wait, {"stdout": b"beside\n"}, limits=_SMALL)
    async with factory() as sandbox, factory() as neighbour:
        await asyncio.gather(hoard(sandbox), beside(neighbour))


async def _talk(factory: Factory) -> None:
    """Two sandboxes that live at one time hear nothing of each other."""
    name = f"agentrl-talk-{os.urandom(6).hex()}".encode()
    rule = "nothing that one sandbox says reaches another"
    hear = step(rule, HEAR, {"status": "ok", "stdout": held}, stdin=name)
    async with factory() as one, factory() as other:
        await asyncio.gather(hear(one), other.run(SAY, stdin=name))


async def _inode_fill(sandbox: Sandbox) -> None:
    limits = _SMALL.replace(max_files=1000)
    await _bomb("all files together are counted", INODE_FILL, limits=limits)(sandbox)
    await sandbox.reset()
    after = step("a reset frees them", "open('own', 'w').close()", {"status": "ok"})
    await after(sandbox)


async def _traces(factory: Factory) -> None:
    """A sandbox that lives after another sees nothing that it left, wherever it could write."""
    name = f"agentrl-trace-{os.urandom(6).hex()}".encode()
    rule = "nothing of one sandbox is left for the next"
    # the second may get the first's place
    for program in (LEAVE, LOOK_FOR_TRACE, LOOK_FOR_TRACE):
        await steps(step(rule, program, {"status": "ok", "stdout": held}, stdin=name))(
            factory
        )


async def _swapped_folders(factory: Factory) -> None:
    """Survivors swap their folders for links to one outside while the sandbox is ended by force and
    removed.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-target-") as outside:
        Path(outside, "d").mkdir()
        Path(outside, "d", "file").write_text("x")
        paths = [outside, os.path.join(outside, "d")]
        for path in paths:
            os.chmod(path, 0o751)
        async with factory() as sandbox:
            for _ in range(_REMOVALS):
                task = asyncio.create_task(
                    sandbox.run(SWAPPER.replace("OUTSIDE", repr(outside)), timeout_s=1.0)
                )
                await asyncio.wait([task], timeout=0.3)
                sandbox.kill_now()
                await asyncio.gather(task, return_exceptions=True)
                await sandbox.reset()
        modes = [oct(os.stat(path).st_mode & 0o777) for path in paths]
        expect(
            modes == ["0o751"] * 2, "the mode of what a link leads to is untouched", modes
        )
        expect(os.listdir(paths[1]) == ["file"], "and what it holds", os.listdir(paths[1]))


async def _neighbour(factory: Factory) -> None:
    """Two sandboxes that live at one time see nothing of each other."""
    async with factory() as victim, factory() as thief:
        found = await victim.run(
            "import os\nopen('secret', 'w').write('s')\nprint(os.getcwd(), os.getpid())"
        )
        folder, pid = found.stdout.decode().split()
        code = f"folder, pid = {folder!r}, {pid}\n" + THEFT
        rule = "a neighbour's files are out of reach"
        await step(rule, code, {"status": "ok", "stdout": held})(thief)


def _named(programs: dict[str, str], guarantee: str) -> tuple[Check, ...]:
    return checks(
        guarantee, {name: partial(_attack, code) for name, code in programs.items()}
    )


def _outlives(code: str, timeout_s: float, status: str) -> Run:
    """A child that writes a heartbeat must be dead when its run has ended."""
    run = step(
        f"the run itself ends as {status!r}",
        BEAT + code,
        {"status": status},
        timeout_s=timeout_s,
    )
    look = step("a child must not outlive its run", LOOK_FOR_BEAT, {"stdout": b"True 0\n"})
    return steps(run, look)


ATTACKS: tuple[Check, ...] = (
    *_named(FILES, "files"),
    *checks(
        "files",
        {
            "a neighbour's folder": _neighbour,
            "folders swapped for links while they are removed": _swapped_folders,
            "traces for the next sandbox": _traces,
        },
    ),
    *_named(SECRETS, "secrets"),
    *_named(NETWORK, "network"),
    *checks(
        "network",
        {
            "words to a neighbour": _talk,
        },
    ),
    *_named(PROCESSES, "processes"),
    *checks(
        "processes",
        {
            "daemon outlives a normal end": _outlives("", 30.0, "ok"),
            "setsid child outlives a timeout": _outlives(
                "while True: pass", 2.0, "timeout"
            ),
            "forged messages to the host": steps(
                step(
                    "what the code writes to the descriptors that it finds changes no result",
                    FORGERY,
                    {"status": "error", "exit_code": 9, "stdout": b"done\n"},
                ),
                step("the next result is the next run's", "print(2)", {"stdout": b"2\n"}),
            ),
            "fork bomb": _fork_bomb,
        },
    ),
    *_named(KERNEL, "kernel"),
    *checks(
        "memory",
        {
            "memory bomb of one process": steps(
                _bomb("the memory of one process is bounded", GREED, "ok", "oom", "killed")
            ),
            "memory bomb of many processes": _memory_bomb(PRIVATE_MEMORY),
            "memory bomb of kernel buffers": steps(
                _bomb("buffers of the kernel's are bounded", BUFFER_BOMB, "ok", "oom")
            ),
            "memory bomb of shared mappings": _memory_bomb(SHARED_MEMORY),
            "memory bomb of kernel buffers in many processes": partial(
                _hoard, BUFFERS_OF_MANY
            ),
            "hoard of shared memory": partial(_hoard, SHARED_HOARD),
            "hoard of /dev/zero": partial(_hoard, ZERO_HOARD),
            "hoard of pages in pipes": partial(_hoard, PIPE_HOARD),
        },
    ),
    *_named(USER, "user"),
    *checks(
        "disk",
        {
            "disk fill": steps(
                _bomb("all files together are bounded", DISK_FILL, limits=_DISK)
            ),
            "inode fill": steps(_inode_fill),
        },
    ),
)
