"""Code that would rather be a failure of the sandbox than a result: many runs of each way, and no
SandboxError.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentrl.sandbox import BackendReport, Sandbox, SandboxSpec
from agentrl.sandbox.conformance.sessions import COMETS, PRELUDE, PROGRAMS
from agentrl.sandbox.sandbox_spec import report_on
from tests.kit.waiting import DEADLINE_S

RUNS = 60
RUNS_OF_EVERY_PROGRAM = 12
RUNS_TO_THE_DEADLINE = 3
WAITS_FOR_ITS_DEADLINE = {
    "puts another socket in its place",
    "reads its socket in a thread",
    "stops itself",
    "ends its first thread alone",
    "nests folders deeply",
}
RESULTS = {"ok", "error", "timeout", "oom", "killed", "output_limit"}


@pytest.fixture(params=["landlock", "bubblewrap"])
async def sandbox(
    request: pytest.FixtureRequest, landlock: BackendReport
) -> AsyncIterator[Sandbox]:
    report = report_on(SandboxSpec(request.param))
    if report.problem is not None:
        pytest.skip(f"the {report.backend} backend is missing here: {report.problem}")
    async with SandboxSpec(request.param, persist="interpreter").build() as built:
        yield built


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS))
async def test_whatever_the_code_does_to_its_interpreter_is_a_result(
    sandbox: Sandbox, name: str
) -> None:
    code, slow = PRELUDE + PROGRAMS[name], name in WAITS_FOR_ITS_DEADLINE
    for _ in range(RUNS_TO_THE_DEADLINE if slow else RUNS_OF_EVERY_PROGRAM):
        seen = [
            await sandbox.run(code, timeout_s=0.3 if slow else 5),
            await sandbox.run("print(3)", timeout_s=1),
        ]
        assert {result.status for result in seen} <= RESULTS
    for _ in range(3):  # until what the code broke is found out
        result = await sandbox.run("print(3)", timeout_s=60)
    assert (result.status, result.stdout) == ("ok", b"3\n")


@pytest.mark.wide
@pytest.mark.parametrize(
    "name",
    [
        "shuts its socket for reading",
        "floods its socket",
        "floods its socket and ends itself",
        "writes an exit code and ends itself",
        "writes an exit code, then ends itself",
        "gives its files names beyond measure",
    ],
)
async def test_what_was_a_failure_of_the_sandbox_is_a_result(
    sandbox: Sandbox, name: str
) -> None:
    for _ in range(RUNS):
        assert (await sandbox.run(PRELUDE + PROGRAMS[name], timeout_s=5)).status in RESULTS
        assert len(await sandbox.list_files()) <= 1000


async def test_a_forged_exit_code_ends_the_run_and_the_next_is_its_own(
    sandbox: Sandbox,
) -> None:
    result = await sandbox.run(PRELUDE + "each(forge)\nwhile True: pass", timeout_s=30)
    assert (result.status, result.interpreter_ended) == ("killed", True)
    assert result.detail.startswith("the code wrote to the socket of its interpreter")
    assert (await sandbox.run("print(3)")).stdout == b"3\n"


async def test_a_run_that_closes_every_descriptor_keeps_its_own_exit_code(
    sandbox: Sandbox,
) -> None:
    result = await sandbox.run("import os\nos.closerange(3, 256)\nprint(1)")
    assert (result.status, result.exit_code, result.stdout, result.interpreter_ended) == (
        "ok",
        0,
        b"1\n",
        True,
    )


# Where it is frozen with a timer's signal pending, the kernel drops that signal and the timer rests
# for good: on a busy machine the first ones may be lost. The end of its run takes less of the
# processor than it burns.
WAKES_ITSELF = """
x = 1
signal.signal(signal.SIGCONT, lambda *_: None)
for doubled in range(7): timer(signal.SIGCONT, 100_000_000 << doubled)
def burn():
    while time.process_time() < end: pass
    open('awake', 'w').close()
end = time.process_time() + 0.3
threading.Thread(target=burn, daemon=True).start()
"""


async def test_an_interpreter_that_was_awake_between_two_runs_is_ended(
    sandbox: Sandbox,
) -> None:
    await sandbox.run(PRELUDE + WAKES_ITSELF)
    async with asyncio.timeout(DEADLINE_S):
        while "awake" not in await sandbox.list_files():
            await asyncio.sleep(0.01)
    result = await sandbox.run("print('x' in globals())")
    assert (result.stdout, result.interpreter_ended) == (b"False\n", True)


async def test_a_process_whose_first_thread_has_ended_does_not_outlive_its_run(
    sandbox: Sandbox,
) -> None:
    beat = (
        "import ctypes, os, platform, threading, time\ndef beat():\n    for _ in range(3000):\n"
        "        open('beat', 'a').write('.'); time.sleep(0.01)\n"
        "if os.fork() == 0:\n    threading.Thread(target=beat).start()\n"
        "    ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)\n"
        "while not os.path.exists('beat'): time.sleep(0.01)"
    )
    assert (await sandbox.run(beat)).status == "ok"
    before = (await sandbox.list_files())["beat"]
    await asyncio.sleep(0.3)
    assert (await sandbox.list_files())["beat"] == before


async def test_processes_that_are_gone_when_they_are_found_end_with_their_run(
    sandbox: Sandbox,
) -> None:
    for persist in ("interpreter", "files") * 3:
        result = await sandbox.run(PRELUDE + COMETS, persist=persist)  # type: ignore[arg-type]
        assert result.status in RESULTS
        assert (await sandbox.run("print(3)")).stdout == b"3\n"
