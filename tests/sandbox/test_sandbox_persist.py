"""An interpreter that keeps its variables over the runs of one sandbox, and of no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from agentrl.errors import ConfigError
from agentrl.sandbox import BackendReport, Limits, Sandbox, SandboxSpec
from agentrl.sandbox.sandbox_spec import report_on

LOST = "the interpreter ended, and its variables with it"


@pytest.fixture(params=["landlock", "bubblewrap", "unsafe"])
async def sandbox(
    request: pytest.FixtureRequest, landlock: BackendReport
) -> AsyncIterator[Sandbox]:
    report = report_on(SandboxSpec(request.param))
    if report.problem is not None:
        pytest.skip(f"the {report.backend} backend is missing here: {report.problem}")
    async with SandboxSpec(request.param, persist="interpreter").build() as built:
        yield built


async def test_variables_functions_and_imports_last(sandbox: Sandbox) -> None:
    await sandbox.run("import json\nx = 41\ndef double(y): return 2 * y")
    result = await sandbox.run("x += 1\nprint(double(x), json.dumps(x))")
    assert (result.stdout, result.interpreter_ended) == (b"84 42\n", False)


async def test_an_expression_alone_prints_nothing(sandbox: Sandbox) -> None:
    assert (await sandbox.run("1 + 1")).stdout == b""


async def test_each_run_has_its_own_input_output_and_deadline(sandbox: Sandbox) -> None:
    first = await sandbox.run(
        "print(input())\nimport sys; print('e', file=sys.stderr)", stdin=b"one\ntwo\n"
    )
    assert (first.stdout, first.stderr) == (b"one\n", b"e\n")
    second = await sandbox.run("print(input())", stdin=b"three\n")
    assert (second.stdout, second.stderr) == (b"three\n", b"")
    assert b"EOFError" in (await sandbox.run("input()")).stderr


async def test_an_exception_and_an_exit_leave_the_variables(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    assert (await sandbox.run("x = 2\n1 / 0")).status == "error"
    assert (await sandbox.run("x += 1\nimport sys; sys.exit(7)")).exit_code == 7
    assert (await sandbox.run("print(x)")).stdout == b"3\n"


async def test_a_traceback_shows_the_lines_of_the_run_they_come_from(
    sandbox: Sandbox,
) -> None:
    await sandbox.run("def fails():\n    raise ValueError('here')")
    result = await sandbox.run("# another first line\nfails()")
    assert b"raise ValueError('here')" in result.stderr
    assert b"another first line" not in result.stderr


@pytest.mark.parametrize(
    ("code", "status", "why"),
    [
        ("while True: pass", "timeout", "still running after 0.5 s"),
        ("import os; os._exit(3)", "error", ""),
        ("import os; os.kill(os.getpid(), 9)", "killed", "ended by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "error", "ended by SIGSEGV"),
        ("x = bytearray(2 * 2**30)", "oom", "MemoryError"),
        ("print('y' * 10_000_000)", "output_limit", "stdout passed the limit"),
    ],
    ids=["timeout", "exit", "killed", "crash", "oom", "output"],
)
async def test_whatever_ends_the_interpreter_is_said_and_the_next_run_starts_afresh(
    sandbox: Sandbox, code: str, status: str, why: str
) -> None:
    await sandbox.run("x = 1")
    result = await sandbox.run(code, timeout_s=0.5 if status == "timeout" else 60)
    assert (result.status, result.interpreter_ended) == (status, True)
    assert result.detail.startswith(why)
    assert result.detail.endswith(LOST)
    after = await sandbox.run("print('x' in globals())")
    assert (after.stdout, after.interpreter_ended, after.detail) == (b"False\n", False, "")


async def test_an_end_that_no_reply_told_of_is_told_by_the_next(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    task = asyncio.create_task(sandbox.run("while True: pass", timeout_s=600))
    await asyncio.wait([task], timeout=0.3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    result = await sandbox.run("print('x' in globals())")
    assert (result.stdout, result.interpreter_ended) == (b"False\n", True)
    assert "the variables of earlier runs are lost" in result.detail
    assert not (await sandbox.run("pass")).interpreter_ended


async def test_what_the_code_does_to_its_socket_costs_its_own_variables_alone(
    sandbox: Sandbox,
) -> None:
    await sandbox.run("x = 1")
    forged = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\0' * 64)\n    except OSError: pass\nprint(2)"  # noqa: E501
    await sandbox.run(forged, timeout_s=5)
    for _ in range(2):  # it may take one run to be found out
        result = await sandbox.run("print(3)", timeout_s=60)
    assert result.stdout == b"3\n"


async def test_nothing_runs_between_runs(sandbox: Sandbox) -> None:
    code = (
        "import threading, time\nbeats = 0\ndef beat():\n    global beats\n"
        "    while True: beats += 1; time.sleep(0.01)\n"
        "threading.Thread(target=beat, daemon=True).start()\ntime.sleep(0.1)\nbefore = beats"
    )
    await sandbox.run(code)
    await asyncio.sleep(1.0)
    result = await sandbox.run("print(beats - before)")
    assert int(result.stdout) < 50  # of 100 that it would have made


async def test_processes_of_a_run_end_with_it_and_the_variables_stay(
    sandbox: Sandbox,
) -> None:
    code = "import os, time\nx = 5\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: "  # noqa: E501
    code += (
        "open('beat', 'a').write('.'); time.sleep(0.01)\n    os._exit(0)\ntime.sleep(0.3)"
    )
    await sandbox.run(code)
    before = (await sandbox.list_files())["beat"]
    await asyncio.sleep(0.3)
    assert (await sandbox.list_files())["beat"] == before > 0
    assert (await sandbox.run("print(x)")).stdout == b"5\n"


async def test_a_program_beside_it_leaves_the_variables(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1")
    assert (await sandbox.run(argv=["sh", "-c", "echo here"])).stdout == b"here\n"
    assert (
        await sandbox.run("print('x' in globals())", persist="files")
    ).stdout == b"False\n"
    assert (await sandbox.run("print(x)")).stdout == b"1\n"


async def test_processor_time_is_each_runs_own(sandbox: Sandbox) -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    assert (await sandbox.run(burn)).cpu_s >= 0.3
    assert (await sandbox.run("pass")).cpu_s < 0.2
    limits = Limits(wall_s=60, cpu_s=0.2)
    assert (await sandbox.run("pass", limits=limits)).status == "ok"
    assert (await sandbox.run("while True: pass", limits=limits)).status == "timeout"


async def test_variables_reach_no_other_sandbox_and_no_reset(
    sandbox: Sandbox, landlock: BackendReport
) -> None:
    await sandbox.run("x = 1")
    async with SandboxSpec("landlock", persist="interpreter").build() as other:
        assert (await other.run("print('x' in globals())")).stdout == b"False\n"
    await sandbox.reset()
    assert (await sandbox.run("print('x' in globals())")).stdout == b"False\n"


async def test_a_run_may_ask_for_it_where_the_sandbox_does_not(
    landlock: BackendReport,
) -> None:
    async with SandboxSpec("landlock").build() as sandbox:
        await sandbox.run("x = 1", persist="interpreter")
        assert (await sandbox.run("print('x' in globals())")).stdout == b"False\n"
        assert (await sandbox.run("print(x)", persist="interpreter")).stdout == b"1\n"


async def test_a_limit_that_only_the_start_can_set_is_refused_for_one_run(
    sandbox: Sandbox,
) -> None:
    with pytest.raises(
        ConfigError, match=r"memory_bytes=67108864 .* set Limits\.memory_bytes, or .*files"
    ):
        await sandbox.run("pass", limits=Limits(memory_bytes=64 * 2**20))


async def test_a_hundred_runs_cost_no_hundred_starts(sandbox: Sandbox) -> None:
    await sandbox.run("x = 0")
    started = time.monotonic()
    for _ in range(100):
        await sandbox.run("x += 1")
    assert (await sandbox.run("print(x)")).stdout == b"100\n"
    assert time.monotonic() - started < 60


def test_another_word_than_files_or_interpreter_is_a_config_error() -> None:
    with pytest.raises(
        ConfigError,
        match=r"SandboxSpec\.persist must be 'files' or 'interpreter', got 'all'",
    ):
        SandboxSpec(persist="all")  # type: ignore[arg-type]
