"""``landlock`` has no file system of its own: what of the disk it counts, what it refuses, and the
reserve it keeps.
"""

from __future__ import annotations

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import BackendReport, Limits, SandboxSpec

SMALL = Limits(wall_s=30, file_bytes=4 * 2**20, disk_bytes=16 * 2**20)
HOLD = "\nimport time\ntime.sleep(30)"


async def test_space_is_not_taken_ahead_of_what_is_written(spec: SandboxSpec) -> None:
    code = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("big", os.O_RDWR | os.O_CREAT)
for keep_size in (0, 1):
    assert libc.fallocate(fd, keep_size, ctypes.c_long(0), ctypes.c_long(2**20)) == -1
    assert ctypes.get_errno() == errno.EOPNOTSUPP
print(os.fstat(fd).st_blocks)
os.posix_fallocate(fd, 0, 2**20)
print(os.fstat(fd).st_size)
"""
    async with spec.build() as sandbox:
        result = await sandbox.run(code)
    assert (result.status, result.stdout) == ("ok", b"0\n1048576\n"), result.stderr


async def test_files_that_are_held_open_without_a_name_count(spec: SandboxSpec) -> None:
    code = (
        "import os\nheld = []\nfor n in range(24):\n    held.append(open('f', 'wb'))\n"
        "    held[-1].write(b'x' * 2**20); held[-1].flush()\n    os.unlink('f')"
    )
    async with spec.build() as sandbox:
        result = await sandbox.run(code + HOLD, limits=SMALL)
    assert (result.status, "the limit is 16777216 bytes" in result.detail) == (
        "killed",
        True,
    )


async def test_files_held_by_a_process_whose_first_thread_has_ended_count(
    spec: SandboxSpec,
) -> None:
    code = (
        "import ctypes, os, platform, threading, time\nheld = []\n"
        "for n in range(24):\n    held.append(open('f', 'wb')); held[-1].write(b'x' * 2**20); "
        "held[-1].flush()\n"
        "    os.unlink('f')\n"
        "threading.Thread(target=time.sleep, args=(30,)).start()\n"
        "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)"
    )
    async with spec.build() as sandbox:
        result = await sandbox.run(code, limits=SMALL)
    assert (result.status, "the limit is 16777216 bytes" in result.detail) == (
        "killed",
        True,
    )


async def test_files_in_a_folder_that_the_code_closed_count(spec: SandboxSpec) -> None:
    code = (
        "import os\nos.mkdir('d')\nfor n in range(24):\n"
        "    with open(f'd/{n}', 'wb') as file: file.write(b'x' * 2**20)\nos.chmod('d', 0)"
    )
    async with spec.build() as sandbox:
        result = await sandbox.run(code + HOLD, limits=SMALL)
    assert (result.status, "the limit is 16777216 bytes" in result.detail) == (
        "killed",
        True,
    )


async def test_folders_nested_beyond_counting_end_the_run(spec: SandboxSpec) -> None:
    code = "import os\nfor n in range(100):\n    os.mkdir('d'); os.chdir('d')\nopen('f', 'wb').write(b'x' * 2**20)"  # noqa: E501
    async with spec.build() as sandbox:
        result = await sandbox.run(code + HOLD, limits=SMALL)
        assert (result.status, result.detail) == ("killed", "folders nested deeper than 64")
        await sandbox.reset()
        assert (await sandbox.run("import os\nprint(os.listdir())")).stdout == b"[]\n"


async def test_a_closed_folder_stays_closed_for_the_code(spec: SandboxSpec) -> None:
    code = "import os, time\nos.mkdir('d', 0)\ntime.sleep(1.5)\nprint(oct(os.stat('d').st_mode & 0o777))"  # noqa: E501
    async with spec.build() as sandbox:
        assert (await sandbox.run(code)).stdout == b"0o0\n"


async def test_below_the_reserve_a_run_that_wrote_much_is_ended(spec: SandboxSpec) -> None:
    code = (
        "for n in range(8):\n    with open(f'{n}', 'wb') as file: file.write(b'x' * 2**20)"
    )
    async with spec.build() as sandbox:
        limits = Limits(file_bytes=2**20, disk_bytes=16 * 2**20, reserve_bytes=0)
        assert (await sandbox.run(code, limits=limits)).status == "ok"
        # what it wrote is there before anybody looks
        result = await sandbox.run(HOLD, limits=limits.replace(reserve_bytes=2**60))
    assert result.status == "killed"
    assert (
        f"Limits.reserve_bytes is {2**60}, and the code has its part in it" in result.detail
    )


@pytest.mark.parametrize(
    "hides",
    [
        "a, b = socket.socketpair()\nsocket.send_fds(a, [b'!'], [f.fileno()])\nf.close()",
        "m = mmap.mmap(f.fileno(), 2**20)\nf.close()",
        "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)",  # PR_SET_DUMPABLE
    ],
    ids=["in a socket", "in a mapping", "behind closed descriptors"],
)
async def test_below_the_reserve_a_run_that_hides_files_is_ended(
    spec: SandboxSpec, hides: str
) -> None:
    code = (
        "import mmap, os, socket\nf = open('f', 'w+b')\nf.write(b'x' * 2**20); "
        "f.flush()\nos.unlink('f')\n" + hides
    )
    async with spec.build() as sandbox:
        limits, kept = Limits(reserve_bytes=0), "interpreter"
        assert (await sandbox.run(code, limits=limits, persist=kept)).status == "ok"
        # what it hides is there before anybody looks
        limits = limits.replace(reserve_bytes=2**60)
        result = await sandbox.run(HOLD, limits=limits, persist=kept)
    assert (result.status, "the code has its part in it" in result.detail) == (
        "killed",
        True,
    )


async def test_below_the_reserve_a_run_that_wrote_little_is_no_result(
    spec: SandboxSpec,
) -> None:
    async with spec.build() as sandbox:
        with pytest.raises(
            SandboxError,
            match=r"bytes are left .*reserve_bytes is \d+: free some, or lower it",
        ):
            await sandbox.run("print(1)" + HOLD, limits=Limits(reserve_bytes=2**60))


async def test_no_reserve_is_kept_where_none_is_asked_for(spec: SandboxSpec) -> None:
    async with spec.build() as sandbox:
        result = await sandbox.run(
            "import time\ntime.sleep(0.5)", limits=Limits(reserve_bytes=0)
        )
    assert result.status == "ok"


def test_a_report_says_what_is_not_promised(landlock: BackendReport) -> None:
    assert "disk" not in landlock.held
    assert "does not promise disk" in str(landlock)
