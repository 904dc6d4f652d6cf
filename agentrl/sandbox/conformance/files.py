"""File checks: round trips, and every path that must be refused."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable

from agentrl.sandbox.interface import FileHash, FileRefusedError, Limits, Sandbox

from .verdict import Step, checks, expect, step, steps

_OUTSIDE = (
    "../up",
    "a/../../up",
    "/etc/passwd",
    "",
    ".",
    "a\0b",
    "x/" * 100 + "y",
    "\ud800",
)


async def _refused(action: Awaitable[object], rule: str) -> None:
    try:
        seen = await action
    except FileRefusedError:
        return
    expect(False, rule, seen)


async def _round_trip(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 400
    await sandbox.write_file("deep/er/in.bin", data)
    expect(
        await sandbox.read_file("deep/er/in.bin") == data,
        "what was written is read",
        "other bytes",
    )
    result = await sandbox.run(
        "a = open('deep/er/in.bin', 'rb').read() + open('second', 'rb').read()\nopen('out', "
        "'wb').write(a[::-1])",
        files={"second": b"two"},
        fetch=["out", "absent"],
    )
    expect(
        result.files == {"out": (data + b"two")[::-1]},
        "files go in and out with a run",
        result,
    )
    expect(
        set(result.refused_files) == {"absent"},
        "a file that is not there is said to be so",
        result,
    )
    listed = dict(await sandbox.list_files())
    wanted = {"deep/er/in.bin": len(data), "second": 3, "out": len(data) + 3}
    expect(listed == wanted, "every file is listed with its size", listed)


async def _persist_and_reset(sandbox: Sandbox) -> None:
    await sandbox.run(
        "import os, tempfile\nopen('kept', 'w').write('1')\ntempfile.mkstemp(prefix='left')"
    )
    result = await sandbox.run(
        "import os, tempfile\nprint(open('kept').read(), os.listdir(tempfile.gettempdir()))"
    )
    expect(
        result.stdout == b"1 []\n",
        "files persist over the runs of a session, temporary ones do not",
        result,
    )
    await sandbox.reset()
    result = await sandbox.run(
        "import os, tempfile\nprint(os.listdir('.'), os.listdir(tempfile.gettempdir()))"
    )
    expect(result.stdout == b"[] []\n", "a reset leaves nothing", result)
    await sandbox.close()
    await sandbox.close()


async def _paths_outside(sandbox: Sandbox) -> None:
    for path in _OUTSIDE:
        await _refused(sandbox.read_file(path), f"reading {path!r} must be refused")
        await _refused(sandbox.write_file(path, b"x"), f"writing {path!r} must be refused")
        await _refused(
            sandbox.run("print(1)", files={path: b"x"}),
            f"uploading {path!r} must be refused",
        )
        result = await sandbox.run("print(1)", fetch=[path])
        expect(
            path in result.refused_files and not result.files,
            f"fetching {path!r} must be refused",
            result,
        )


async def _links_and_devices(sandbox: Sandbox) -> None:
    plant = (
        "import os\nos.symlink('/etc/hostname', 'link')\nos.symlink('/', "
        "'folder')\nos.symlink('/dev/zero', 'zero')\n"
        "os.mkfifo('pipe')\nos.mkdir('real')\nos.symlink('link', 'chain')"
    )
    await step("links can be made", plant, {"status": "ok"})(sandbox)
    for path in ("link", "chain", "zero", "pipe", "real", "folder/etc/hostname"):
        await _refused(sandbox.read_file(path), f"reading {path!r} must be refused")
    await _refused(
        sandbox.write_file("folder/tmp/made", b"x"),
        "writing through a linked folder must be refused",
    )
    await sandbox.write_file("link", b"own")
    expect(
        await sandbox.read_file("link") == b"own",
        "writing replaces a link, never follows it",
        "followed",
    )
    listed = dict(await sandbox.list_files())
    expect(listed == {"link": 3}, "only regular files are listed", listed)


async def _sizes(sandbox: Sandbox) -> None:
    limits = Limits(file_bytes=100_000)
    result = await sandbox.run(
        "with open('big', 'wb') as f: f.write(b'x' * 100_001)", limits=limits
    )
    expect(
        result.status in ("error", "killed"),
        "a file over its limit cannot be written",
        result,
    )
    await _refused(
        sandbox.run("print(1)", files={"a": b"x" * 100_001}, limits=limits),
        "nor uploaded where it is too large",
    )
    await sandbox.run("open('large', 'wb').write(b'x' * 200_000)")
    result = await sandbox.run("print(1)", fetch=["large"], limits=limits)
    expect(not result.files and "large" in result.refused_files, "nor fetched", result)


async def _hashes(sandbox: Sandbox) -> None:
    expect(await sandbox.hash_files(100) == ({}, True), "a new folder has no file", "files")
    await sandbox.run(
        "import os\nopen('a', 'w').write('one')\nos.mkdir('d')\n"
        "open('d/b', 'w').write('x' * 101)\nos.symlink('a', 'link')\nos.mkfifo('pipe')"
    )
    one = FileHash(3, hashlib.sha256(b"one").hexdigest())
    found, complete = await sandbox.hash_files(100)
    expect(
        (dict(found), complete) == ({"a": one, "d/b": FileHash(101, "")}, True),
        "every regular file has its size and hash, one that is too large its size",
        found,
    )
    await sandbox.run("import os\nopen('a', 'w').write('two')\nos.remove('d/b')")
    found, _ = await sandbox.hash_files(100)
    two = FileHash(3, hashlib.sha256(b"two").hexdigest())
    expect(dict(found) == {"a": two}, "a file of the same size has another hash", found)


async def _closed_folder(sandbox: Sandbox) -> None:
    await sandbox.run(
        "import os, tempfile\nos.chmod(tempfile.gettempdir(), 0)\nos.chmod('.', 0)"
    )
    expect(
        (await sandbox.run("print(1)")).stdout == b"1\n",
        "code cannot make the next run fail",
        "no output",
    )
    await sandbox.write_file("a", b"1")
    expect(
        await sandbox.read_file("a") == b"1", "nor a file's way in and out", "other bytes"
    )


async def _hard_to_remove(sandbox: Sandbox) -> None:
    code = (
        "import os\nfor n in range(3):\n    os.mkdir(f'd{n}'); open(f'd{n}/f', 'w').close(); "
        "os.chmod(f'd{n}', 0)\n"
        "for _ in range(1100):\n    os.mkdir('d' * 50); os.chdir('d' * 50)"
    )
    await sandbox.run(code)
    await sandbox.reset()
    expect(
        not await sandbox.list_files(),
        "folders that are closed or nested 1100 deep are removed",
        "left over",
    )


_CHECKS: dict[str, Step] = {
    "file round trip": _round_trip,
    "files persist until reset": _persist_and_reset,
    "paths outside are refused": _paths_outside,
    "links and devices are refused": _links_and_devices,
    "file size limit": _sizes,
    "file hashes": _hashes,
    "a closed working folder": _closed_folder,
    "folders that are hard to remove": _hard_to_remove,
}
FILE_CHECKS = checks(None, {name: steps(check) for name, check in _CHECKS.items()})
