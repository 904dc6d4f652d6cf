from __future__ import annotations

import pytest

from agentrl.sandbox import (
    GUARANTEES,
    BackendReport,
    FileRefusedError,
    Limits,
    Sandbox,
    SandboxSpec,
)
from agentrl.sandbox.conformance import CHECKS, Check, check_sandbox
from agentrl.sandbox.conformance.sessions import EXCUSES
from agentrl.sandbox.forkserver.hosts import shared_server
from agentrl.sandbox.forkserver.server import HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from agentrl.sandbox.host.files import cut_lines
from tests.kit.marks import wide_but

SEMANTICS = [check for check in CHECKS if check.guarantee is None]


def name(check: Check) -> str:
    return check.name


@pytest.mark.parametrize("check", wide_but(CHECKS[::6], CHECKS), ids=name)
async def test_landlock_passes_every_check_of_what_it_claims(
    check: Check, landlock: BackendReport
) -> None:
    results = await check_sandbox(
        SandboxSpec("landlock").build, guarantees=landlock.held, only=[check.name]
    )
    assert len(results) == (check.guarantee is None or check.guarantee in landlock.held)
    assert [result.detail for result in results if not result.passed] == []


@pytest.mark.parametrize("check", wide_but(SEMANTICS[::6], SEMANTICS), ids=name)
async def test_unsafe_has_the_same_semantics(check: Check) -> None:
    (result,) = await check_sandbox(
        SandboxSpec("unsafe").build, guarantees=(), only=[check.name]
    )
    assert result.passed, result.detail


async def test_a_backend_that_reads_whole_files_hashes_and_cuts_them_alike() -> None:
    async with SandboxSpec("unsafe").build() as sandbox:
        await sandbox.run(
            "import os\nos.mkdir('d')\nopen('d/a', 'w').write('one')\n"
            "open('b', 'w').write('x' * 9)\nos.symlink('b', 'link')"
        )
        found, complete = await Sandbox.hash_files(sandbox, 8)
        assert (found, complete) == await sandbox.hash_files(8)
        lines = await sandbox.read_lines("d/a", 1, 1, max_bytes=2)
        assert await Sandbox.read_lines(sandbox, "d/a", 1, 1, max_bytes=2) == lines
        assert lines == (b"on", 1, True)
        with pytest.raises(FileRefusedError):
            await sandbox.read_lines("../a", max_bytes=9)
        assert {path: entry.num_bytes for path, entry in found.items()} == {
            "b": 9,
            "d/a": 3,
        }


@pytest.mark.slow
@pytest.mark.parametrize("abi", wide_but([1], [1, 3, 5]))
async def test_what_an_older_kernel_lacks_is_closed_by_other_means(
    abi: int, landlock: BackendReport
) -> None:
    settings = HostSettings(confine=True, abi_cap=abi)

    def build() -> ForkedSandbox:
        return ForkedSandbox(lambda: shared_server(settings), Limits())

    # ways to blame the sandbox for what the code did meet no Landlock: the oldest kernel shows them
    left_out = set() if abi == 1 else {check.name for check in EXCUSES}
    attacks = [
        check.name for check in CHECKS if check.guarantee and check.name not in left_out
    ]
    results = await check_sandbox(build, guarantees=landlock.held, only=attacks)
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize(
    "attack",
    [
        "read outside",
        "write outside",
        "loopback services",
        "signal others",
        "environment and memory of others",
    ],
)
async def test_the_suite_sees_an_attack_that_succeeds(attack: str) -> None:
    (result,) = await check_sandbox(
        SandboxSpec("unsafe").build, guarantees=GUARANTEES, only=[attack]
    )
    assert not result.passed


def test_every_guarantee_has_an_attack() -> None:
    assert {check.guarantee for check in CHECKS} - {None} == set(GUARANTEES)


def test_every_check_has_a_name_of_its_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    ("data", "first", "last", "max_bytes", "found"),
    [
        (b"one\ntwo\nthree", 1, None, 99, (b"one\ntwo\nthree", 3, False)),
        (b"one\ntwo\nthree", 2, 2, 4, (b"two\n", 3, False)),
        (b"one\ntwo\nthree", 2, None, 4, (b"two\n", 3, True)),
        (b"one\ntwo\n", 3, 9, 99, (b"", 2, False)),
        (b"one\ntwo\n", 2, 1, 99, (b"", 2, False)),
        (b"", 1, None, 99, (b"", 0, False)),
        # beyond two blocks of a mebibyte, of which the second ends with a line
        (b"\n" * 2**21 + b"end", 2**21, None, 99, (b"\nend", 2**21 + 1, False)),
        (b"\n" * 2**21 + b"end", 2**21 + 1, None, 99, (b"end", 2**21 + 1, False)),
    ],
)
def test_lines_are_cut_by_number_and_bytes(
    data: bytes,
    first: int,
    last: int | None,
    max_bytes: int,
    found: tuple[bytes, int, bool],
) -> None:
    assert cut_lines(data, first, last, max_bytes) == found
