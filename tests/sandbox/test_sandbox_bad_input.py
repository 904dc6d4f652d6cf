"""Whatever is handed to a sandbox is a result, or a refusal that says what to mend; never the
sandbox's failure.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentrl.errors import ConfigError, MachineError
from agentrl.sandbox import DockerSettings, FileRefusedError, Limits, SandboxSpec


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("", "ok", b""),
        (b"", "ok", b""),
        (
            b"print('\xff')",
            "error",
            b"the code is not valid UTF-8: invalid start byte at byte 7",
        ),
        ("print('\ud800')", "error", b"not valid UTF-8"),
        ("a\0b", "error", b"null bytes"),
        ("x = 1\n" + "#" * 5_000_000 + "\nprint(x)", "ok", b""),
        ("1" * 5_000_000, "output_limit", b""),  # the line that the error quotes
    ],
    ids=["empty", "empty bytes", "not UTF-8", "surrogate", "NUL", "5 MB", "5 MB number"],
)
async def test_code_of_any_content_is_a_result(
    spec: SandboxSpec, code: str | bytes, status: str, said: bytes
) -> None:
    async with spec.build() as sandbox:
        result = await sandbox.run(code, timeout_s=60)
        assert (result.status, said in result.stderr) == (status, True)
        assert (await sandbox.run("print(1)")).stdout == b"1\n"


@pytest.mark.parametrize(
    "timeout_s", [-1.0, 0.0, math.inf, -math.inf, math.nan, 1e9, "5", True]
)
async def test_a_timeout_that_is_no_deadline_is_refused(
    spec: SandboxSpec, timeout_s: Any
) -> None:
    async with spec.build() as sandbox:
        with pytest.raises(ConfigError, match=r"Limits\.wall_s must be .*, got "):
            await sandbox.run("pass", timeout_s=timeout_s)


@pytest.mark.parametrize(
    "path",
    [
        "../up",
        "a/../../up",
        "/etc/passwd",
        "",
        ".",
        "a\0b",
        "x/" * 100 + "y",
        "\ud800",
        "..",
        "a/..",
    ],
)
async def test_a_path_that_leaves_the_folder_or_names_no_file_is_refused(
    spec: SandboxSpec, path: str
) -> None:
    async with spec.build() as sandbox:
        for action in (
            sandbox.read_file(path),
            sandbox.write_file(path, b"x"),
            sandbox.run("pass", files={path: b"x"}),
        ):
            with pytest.raises(FileRefusedError):
                await action
        assert set((await sandbox.run("pass", fetch=[path])).refused_files) == {path}


@pytest.mark.parametrize(
    "plant",
    [
        "os.symlink('/etc/passwd', 'file')",
        "os.symlink('/dev/zero', 'file')",
        "os.mkfifo('file')",
        "os.mkdir('file')",
        "os.symlink('..', 'way'); os.symlink('way/work', 'file')",
    ],
    ids=["link", "device", "pipe", "folder", "link to a folder"],
)
async def test_what_is_no_regular_file_is_not_read(spec: SandboxSpec, plant: str) -> None:
    async with spec.build() as sandbox:
        assert (await sandbox.run(f"import os\n{plant}")).status == "ok"
        with pytest.raises(FileRefusedError):
            await sandbox.read_file("file")


async def test_a_file_over_its_limit_moves_neither_in_nor_out(spec: SandboxSpec) -> None:
    limits = Limits(file_bytes=1000)
    async with spec.build() as sandbox:
        with pytest.raises(FileRefusedError, match="1001 bytes exceed the limit of 1000"):
            await sandbox.run("pass", files={"big": b"x" * 1001}, limits=limits)
        await sandbox.write_file("big", b"x" * 1001)
        result = await sandbox.run("pass", fetch=["big"], limits=limits)
        assert "larger than the limit of 1000 bytes" in result.refused_files["big"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give either code or argv"),
        ({"code": "1", "argv": ["ls"]}, "give either code or argv"),
        ({"argv": []}, "non-empty sequence of strings"),
        ({"argv": "ls -l"}, "non-empty sequence of strings"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"code": "1", "env": {"A=B": "1"}}, "cannot be a variable"),
        ({"code": "1", "env": {"": "1"}}, "cannot be a variable"),
        ({"code": "1", "env": {"A": "\0"}}, "cannot be a variable"),
    ],
)
async def test_arguments_that_no_program_can_take_are_refused(
    spec: SandboxSpec, arguments: dict[str, Any], words: str
) -> None:
    async with spec.build() as sandbox:
        with pytest.raises(ValueError, match=words):
            await sandbox.run(**arguments)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (
            {"memory_bytes": 2**20},
            "memory_bytes=1048576 is below the 33554432 bytes that an interpreter needs",
        ),
        ({"open_files": 4}, "open_files=4 is below the 16"),
        ({"file_bytes": 2**28 + 1}, "file_bytes=268435457 exceeds disk_bytes=268435456"),
    ],
)
def test_limits_that_contradict_name_themselves(limits: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Limits(**limits)


def test_a_backend_that_this_machine_cannot_give_is_refused_with_the_reason() -> None:
    with pytest.raises(
        MachineError,
        match=r"docker cannot be used: no container engine answers at unix:///nowhere",
    ):
        SandboxSpec(
            "docker", docker=DockerSettings(host="unix:///nowhere/docker.sock")
        ).check()
