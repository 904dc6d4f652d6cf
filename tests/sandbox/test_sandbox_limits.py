from __future__ import annotations

import math
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.sandbox import FileRefusedError, Limits, SandboxSpec


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("wall_s", -1.0),
        ("wall_s", 0),
        ("wall_s", math.inf),
        ("wall_s", math.nan),
        ("wall_s", True),
        ("wall_s", None),
        ("cpu_s", -1),
        ("memory_bytes", 2**20),
        ("memory_bytes", 1.5),
        ("processes", 0),
        ("output_bytes", -1),
        ("open_files", 3),
        ("max_files", 0),
        ("file_bytes", 2**40),
        ("file_bytes", 2**28 + 1),
        ("output_bytes", 2**30),
    ],
)
def test_a_limit_that_cannot_be_names_itself_and_its_value(limit: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Limits\.{limit}.*{value}"):
        Limits(**{limit: value})


async def test_an_upload_over_the_file_limit_is_refused_before_it_is_sent() -> None:
    sandbox = SandboxSpec("unsafe", limits=Limits(file_bytes=10)).build()
    with pytest.raises(FileRefusedError, match="11 bytes exceed the limit of 10"):
        await sandbox.write_file("a", b"x" * 11)


async def test_files_that_fill_the_disk_end_the_run(spec: SandboxSpec) -> None:
    limits = Limits(wall_s=60, file_bytes=2**20, disk_bytes=4 * 2**20)
    code = "import itertools\nfor n in itertools.count():\n    with open(str(n % 64), 'wb') as f: f.write(b'x' * 2**20)"  # noqa: E501
    async with spec.build() as sandbox:
        result = await sandbox.run(code, limits=limits)
    assert (result.status, "the limit is 4194304 bytes" in result.detail) == (
        "killed",
        True,
    )


async def test_files_that_use_up_the_inodes_end_the_run(spec: SandboxSpec) -> None:
    code = "import itertools\nfor n in itertools.count():\n    open(str(n % 5000), 'w').close()"
    async with spec.build() as sandbox:
        result = await sandbox.run(code, limits=Limits(wall_s=60, max_files=1000))
    assert result.status in ("error", "killed")
    assert "more than 1000 files" in result.detail or b"No space left" in result.stderr


async def test_more_processes_than_allowed_are_refused_to_the_code_or_end_it(
    spec: SandboxSpec,
) -> None:
    code = "import os, time\nfor _ in range(9):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\ntime.sleep(5)"  # noqa: E501
    async with spec.build() as sandbox:
        result = await sandbox.run(code, limits=Limits(processes=4, wall_s=60))
    assert result.status in ("error", "killed")


async def test_no_more_files_are_open_than_allowed(spec: SandboxSpec) -> None:
    code = "import os\nheld = []\ntry:\n    while True: held.append(open(os.devnull))\nexcept OSError: print(len(held))"  # noqa: E501
    async with spec.build() as sandbox:
        result = await sandbox.run(code, limits=Limits(open_files=32))
    assert 0 < int(result.stdout) <= 32


async def test_processor_time_is_bounded_whatever_the_wall_says(spec: SandboxSpec) -> None:
    async with spec.build() as sandbox:
        result = await sandbox.run("while True: pass", limits=Limits(wall_s=600, cpu_s=0.5))
    assert (result.status, "the limit is 0.5 s" in result.detail) == ("timeout", True)


async def test_the_limits_of_one_run_do_not_hold_for_the_next(spec: SandboxSpec) -> None:
    async with spec.build() as sandbox:
        assert (
            await sandbox.run("print('x' * 99)", limits=Limits(output_bytes=10))
        ).status == "output_limit"
        assert (await sandbox.run("print('x' * 99)")).status == "ok"
