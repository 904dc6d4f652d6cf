"""Attacks on each guarantee. An attack that succeeds prints BREACH, and does no harm in doing so.

Files are opened for writing and nothing is written, signals are number 0 or SIGCONT, bombs stop by
themselves at a size that any machine bears.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from agentrl.sandbox.limits import Limits

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
from .verdict import Check, Factory, expect, expect_status

_REMOVALS = 4
_SMALL = Limits(wall_s=20, memory_bytes=96 * 2**20, processes=16)


async def _attack(code: str, factory: Factory) -> None:
    """Run one program beside a target of each kind, and see that none was reached."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-target-"))
        os.chmod(folder, 0o777)
        canary = os.path.join(folder, "canary")
        with open(canary, "w") as file:
            file.write("canary")
        os.chmod(canary, 0o666)
        before = os.stat(canary)
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
            expect(b"BREACH" not in result.stdout, "the attack must fail", result)
            expect(b"DONE" in result.stdout, "the attack must run to its end", result)
            expect(result.status in ("ok", "killed"), "and be no failure of the sandbox", result)
        seen = [path for path in made if os.path.exists(path)]
        expect(not seen, "files of its own show nowhere else", seen)
        after = os.stat(canary)
        left = set(os.listdir(folder))
        expect(left == {"canary", "socket", "datagrams"}, "the target's folder is untouched", left)
        same = (before.st_mode, before.st_size, before.st_mtime_ns) == (
            after.st_mode,
            after.st_size,
            after.st_mtime_ns,
        )
        expect(same, "the target file is untouched", after)


def _listeners(stack: ExitStack, folder: str) -> dict[str, object]:
    addresses: dict[str, object] = {}
    abstract = f"agentrl-target-{os.getpid()}-{os.urandom(4).hex()}"
    tcp = stack.enter_context(socket.socket())
    tcp.bind(("127.0.0.1", 0))
    addresses["tcp"] = tcp.getsockname()[1]
    udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    addresses["udp"] = udp.getsockname()[1]
    path = os.path.join(folder, "socket")
    named = stack.enter_context(socket.socket(socket.AF_UNIX))
    named.bind(path)
    os.chmod(path, 0o777)
    addresses["unix"] = path
    listening = [tcp, named]
    if os.uname().sysname == "Linux":
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
        hidden.bind("\0" + abstract)
        listening.append(hidden)
    addresses["abstract"] = abstract
    for sock in listening:
        sock.listen()
    return addresses | _datagram_targets(stack, folder, abstract)


def _datagram_targets(stack: ExitStack, folder: str, abstract: str) -> dict[str, object]:
    path = os.path.join(folder, "datagrams")
    places = {"datagrams": path, "abstract_datagrams": f"{abstract}-datagrams"}
    stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(path)
    os.chmod(path, 0o777)
    if os.uname().sysname == "Linux":
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        hidden.bind("\0" + places["abstract_datagrams"])
    return dict(places)


async def _outliving(code: str, timeout_s: float, status: str, factory: Factory) -> None:
    """A child that writes a heartbeat must be dead when its run has ended."""
    async with factory() as sandbox:
        result = await sandbox.run(code, timeout_s=timeout_s)
        expect(result.status == status, f"the run itself must end as {status!r}", result)
        result = await sandbox.run(LOOK_FOR_BEAT)
        expect(result.stdout == b"True 0\n", "a child must not outlive its run", result)


async def _forged_messages(factory: Factory) -> None:
    """Whatever the code writes to the descriptors that it finds, its result is told by others."""
    async with factory() as sandbox:
        result = await sandbox.run(FORGERY)
        expect(
            (result.status, result.exit_code, result.stdout) == ("error", 9, b"done\n"),
            "unforged",
            result,
        )
        expect(
            (await sandbox.run("print(2)")).stdout == b"2\n",
            "the next result is the next run's",
            result,
        )


async def _fork_bomb(factory: Factory) -> None:
    async with factory() as sandbox, factory() as neighbour:
        result = await sandbox.run(FORK_BOMB, limits=_SMALL)
        expect(b"BREACH" not in result.stdout, "no more processes than the limit live", result)
        expect(result.status in ("ok", "killed"), "it is a result", result)
        for one in (sandbox, neighbour):
            expect(
                (await one.run("import os\nos.wait() if os.fork() else None")).status == "ok",
                "others fork",
                result,
            )


async def _memory_bomb(made: str, factory: Factory) -> None:
    """Many processes that each stay below the limit, together far above it."""
    async with factory() as sandbox:
        result = await sandbox.run(MEMORY_BOMB.replace("MADE", made), limits=_SMALL)
        expect(b"BREACH" not in result.stdout, "all processes together are bounded", result)
        expect(
            result.status in ("ok", "oom", "timeout", "error", "killed"), "it is a result", result
        )
        expect((await sandbox.run("print(1)")).stdout == b"1\n", "the sandbox goes on", result)


async def _one_process(factory: Factory) -> None:
    async with factory() as sandbox:
        result = await sandbox.run(GREED, limits=_SMALL)
        expect(b"BREACH" not in result.stdout, "the memory of one process is bounded", result)
        expect(result.status in ("ok", "oom", "killed"), "it is a result", result)


async def _buffer_bomb(factory: Factory) -> None:
    """What one process has the kernel hold for it stays below its limit."""
    async with factory() as sandbox:
        result = await sandbox.run(BUFFER_BOMB, limits=_SMALL)
        expect(b"BREACH" not in result.stdout, "buffers of the kernel's are bounded", result)
        expect(result.status in ("ok", "oom"), "it is a result", result)


async def _hoard(program: str, factory: Factory) -> None:
    """What a process unmapped and still keeps counts, and costs nobody else anything."""
    async with factory() as sandbox, factory() as neighbour:
        result, beside = await asyncio.gather(
            sandbox.run(program, limits=_SMALL),
            neighbour.run("import time\ntime.sleep(2)\nprint('beside')", limits=_SMALL),
        )
        expect(b"BREACH" not in result.stdout, "memory that no process shows is bounded", result)
        expect(result.status in ("ok", "oom", "killed"), "it is a result", result)
        expect(beside.stdout == b"beside\n", "a neighbour's run goes on", beside)


async def _talk(factory: Factory) -> None:
    """Two sandboxes that live at one time hear nothing of each other."""
    name = f"agentrl-talk-{os.urandom(6).hex()}".encode()
    async with factory() as one, factory() as other:
        heard, _ = await asyncio.gather(one.run(HEAR, stdin=name), other.run(SAY, stdin=name))
        expect_status(heard, "ok")
        expect(
            b"BREACH" not in heard.stdout, "nothing that one sandbox says reaches another", heard
        )


async def _disk_fill(factory: Factory) -> None:
    limits = _SMALL.replace(file_bytes=4 * 2**20, disk_bytes=16 * 2**20)
    async with factory() as sandbox:
        result = await sandbox.run(DISK_FILL, limits=limits)
        expect(b"BREACH" not in result.stdout, "all files together are bounded", result)


async def _inode_fill(factory: Factory) -> None:
    async with factory() as sandbox:
        result = await sandbox.run(INODE_FILL, limits=_SMALL.replace(max_files=1000))
        expect(b"BREACH" not in result.stdout, "all files together are counted", result)
        await sandbox.reset()
        result = await sandbox.run("open('own', 'w').close()")
        expect_status(result, "ok")


async def _traces(factory: Factory) -> None:
    """A sandbox that lives after another sees nothing that it left, wherever it could write."""
    name = f"agentrl-trace-{os.urandom(6).hex()}"
    for program in (
        LEAVE,
        LOOK_FOR_TRACE,
        LOOK_FOR_TRACE,
    ):  # the second may get what the first one had
        async with factory() as sandbox:
            result = await sandbox.run(program, stdin=name.encode())
            expect_status(result, "ok")
            expect(
                b"BREACH" not in result.stdout,
                "nothing of one sandbox is left for the next",
                result,
            )


async def _swapped_folders(factory: Factory) -> None:
    """Survivors swap their folders for links to one outside while the sandbox is ended by force and removed."""
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
        expect(modes == ["0o751"] * 2, "the mode of what a link leads to is untouched", modes)
        expect(os.listdir(paths[1]) == ["file"], "and what it holds", os.listdir(paths[1]))


async def _neighbour(factory: Factory) -> None:
    """Two sandboxes that live at one time see nothing of each other."""
    async with factory() as victim, factory() as thief:
        found = await victim.run(
            "import os\nopen('secret', 'w').write('s')\nprint(os.getcwd(), os.getpid())"
        )
        folder, pid = found.stdout.decode().split()
        code = f"folder, pid = {folder!r}, {pid}\n" + THEFT
        result = await thief.run(code)
        expect_status(result, "ok")
        expect(b"BREACH" not in result.stdout, "a neighbour's files are out of reach", result)


def _named(programs: dict[str, str], guarantee: str) -> tuple[Check, ...]:
    return tuple(Check(name, guarantee, partial(_attack, code)) for name, code in programs.items())


def _outlives(code: str, timeout_s: float, status: str) -> Callable[[Factory], Awaitable[None]]:
    return partial(_outliving, BEAT + code, timeout_s, status)


ATTACKS: tuple[Check, ...] = (
    *_named(FILES, "files"),
    Check("a neighbour's folder", "files", _neighbour),
    Check("folders swapped for links while they are removed", "files", _swapped_folders),
    Check("traces for the next sandbox", "files", _traces),
    *_named(SECRETS, "secrets"),
    *_named(NETWORK, "network"),
    Check("words to a neighbour", "network", _talk),
    *_named(PROCESSES, "processes"),
    Check("daemon outlives a normal end", "processes", _outlives("", 30.0, "ok")),
    Check(
        "setsid child outlives a timeout",
        "processes",
        _outlives("while True: pass", 2.0, "timeout"),
    ),
    Check("forged messages to the host", "processes", _forged_messages),
    Check("fork bomb", "processes", _fork_bomb),
    *_named(KERNEL, "kernel"),
    Check("memory bomb of one process", "memory", _one_process),
    Check("memory bomb of many processes", "memory", partial(_memory_bomb, PRIVATE_MEMORY)),
    Check("memory bomb of kernel buffers", "memory", _buffer_bomb),
    Check("memory bomb of shared mappings", "memory", partial(_memory_bomb, SHARED_MEMORY)),
    Check(
        "memory bomb of kernel buffers in many processes",
        "memory",
        partial(_hoard, BUFFERS_OF_MANY),
    ),
    Check("hoard of shared memory", "memory", partial(_hoard, SHARED_HOARD)),
    Check("hoard of /dev/zero", "memory", partial(_hoard, ZERO_HOARD)),
    Check("hoard of pages in pipes", "memory", partial(_hoard, PIPE_HOARD)),
    *_named(USER, "user"),
    Check("disk fill", "disk", _disk_fill),
    Check("inode fill", "disk", _inode_fill),
)
