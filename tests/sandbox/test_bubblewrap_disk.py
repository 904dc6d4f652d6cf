"""A sandbox's disk in bubblewrap: one file system of its own, bounded by the kernel in bytes and in
files.
"""

from __future__ import annotations

import pytest

from agentrl.sandbox import BackendReport, FileRefusedError, Limits, SandboxSpec

MIB = 2**20
SMALL = Limits(disk_bytes=4 * MIB, file_bytes=4 * MIB, max_files=64)
FILL = """
import os
written = 0
try:
    for folder in (".", "/tmp", "/dev/shm"):
        for number in range(1000):
            with open(f"{folder}/{number}", "wb", buffering=0) as file:
                for _ in range(16):
                    written += file.write(bytes(4096 * SIZE))
except OSError as error:
    print(error.errno, written)
"""


@pytest.fixture
def small(bubblewrap: BackendReport) -> SandboxSpec:
    return SandboxSpec("bubblewrap", limits=SMALL)


async def test_bytes_in_all_folders_together_end_at_the_limit(small: SandboxSpec) -> None:
    async with small.build() as sandbox:
        result = await sandbox.run(FILL.replace("SIZE", "16"))
    number, written = map(int, result.stdout.split())
    assert (number, written <= 4 * MIB, written > 3 * MIB) == (28, True, True)  # ENOSPC


async def test_files_in_all_folders_together_end_at_the_limit(small: SandboxSpec) -> None:
    code = "import os\nn = 0\nwhile True:\n    open(f'/tmp/{n}' if n % 2 else str(n), 'w').close(); n += 1; print(n)"  # noqa: E501
    async with small.build() as sandbox:
        result = await sandbox.run(code)
    assert b"No space left" in result.stderr
    assert 50 < int(result.stdout.split()[-1]) <= 64


async def test_a_full_disk_is_the_codes_fault_and_the_session_goes_on(
    small: SandboxSpec,
) -> None:
    async with small.build() as sandbox:
        await sandbox.run("open('full', 'wb').write(bytes(4 << 20))")
        with pytest.raises(FileRefusedError, match=r"No space left.*Limits\.disk_bytes"):
            await sandbox.write_file("more", bytes(2 * MIB))
        with pytest.raises(FileRefusedError, match="No space left"):
            await sandbox.run("print(1)", files={"more": bytes(2 * MIB)})
        assert (
            await sandbox.run("x = 1\nprint(x)", persist="interpreter")
        ).stdout == b"1\n"
        assert (
            await sandbox.run(
                "import os\nos.remove('full')\nprint(x)", persist="interpreter"
            )
        ).stdout == b"1\n"
        await sandbox.write_file("more", bytes(2 * MIB))


async def test_a_run_with_limits_of_its_own_has_a_disk_of_that_size(
    small: SandboxSpec,
) -> None:
    wide = Limits(disk_bytes=16 * MIB, file_bytes=16 * MIB)
    code = "import os\nprint(os.statvfs('.').f_blocks * 4096, os.statvfs('/tmp').f_blocks * 4096)"
    async with small.build() as sandbox:
        assert (await sandbox.run(code)).stdout == b"4194304 4194304\n"
        result = await sandbox.run(
            "open('big', 'wb').write(bytes(8 << 20))\n" + code, limits=wide
        )
        assert result.stdout == b"16777216 16777216\n"
        # what lies there stays: nothing can be added to it
        result = await sandbox.run(
            "print(len(open('big', 'rb').read()))\nopen('more', 'wb').write(bytes(8192))"
        )
        assert result.stdout == b"8388608\n"
        assert b"No space left" in result.stderr


async def test_tmp_is_empty_in_each_run_and_outlasts_the_runs_of_one_interpreter(
    small: SandboxSpec,
) -> None:
    leave = "import os\nos.makedirs('/tmp/a/b'); open('/tmp/a/b/c', 'w').write('x'); os.chmod('/tmp/a', 0)"  # noqa: E501
    look = "import os\nprint(os.listdir('/tmp'))"
    async with small.build() as sandbox:
        await sandbox.run(leave)
        assert (await sandbox.run(look)).stdout == b"[]\n"
        await sandbox.run(leave, persist="interpreter")
        assert (await sandbox.run(look, persist="interpreter")).stdout == b"['a']\n"
