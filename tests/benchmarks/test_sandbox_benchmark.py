"""The sandbox benchmark's own judgements, and each short part run for real on a small scale."""

from __future__ import annotations

import argparse
import asyncio

import pytest

from agentrl.errors import MachineError
from agentrl.sandbox import ExecResult, SandboxSpec
from agentrl.tools import ToolExecutor
from agentrl.types import ToolCall
from benchmarks.figures import Figures
from benchmarks.sandbox import PARTS, main
from benchmarks.sandboxes import creation, soak, throughput
from benchmarks.sandboxes.in_process import python

pytestmark = pytest.mark.tooling


def result(stdout: bytes, status: str = "ok") -> ExecResult:
    return ExecResult(status=status, exit_code=0, signal=None, stdout=stdout, stderr=b"")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hostile", "given", "wrong"),
    [
        (None, result(b"aa\naa\n"), False),
        (None, result(b"bb\nbb\n"), True),
        (None, result(b"aa\n"), True),
        (None, result(b"aa\naa\n", "error"), True),
        ("hangs", result(b"aa\n", "timeout"), False),
        ("hangs", result(b"", "timeout"), False),
        ("hangs", result(b"bb\n", "timeout"), True),
        ("crashes", result(b"", "error"), True),
    ],
)
def test_a_result_of_another_run_is_found_out(
    hostile: str | None, given: ExecResult, wrong: bool
) -> None:
    seen = soak.Seen()
    seen.take("aa", hostile, given)
    assert (seen.answered, seen.wrong) == (1, wrong)


def test_a_breach_is_counted() -> None:
    seen = soak.Seen()
    seen.take("aa", "reads outside", result(b"aa\nBREACH\n"))
    assert seen.breaches == 1


@pytest.fixture
def landlock() -> None:
    try:
        SandboxSpec("landlock").check()
    except MachineError as error:
        pytest.skip(f"the landlock backend is missing here: {error}")


def rows(figures: Figures) -> dict[str, float]:
    return {row.name: row.value for row in figures.rows}


def test_a_small_soak_loses_nothing(landlock: None) -> None:
    figures = Figures()
    arguments = argparse.Namespace(
        soak_executions=80, soak_backend="landlock", image="absent:0", seed=0
    )
    soak.measure(figures, arguments)
    found = rows(figures)
    assert found["soak: executions"] >= 80
    assert found["soak: executions without a result"] == 0
    assert found["soak: results of another run, or wrong"] == 0
    assert found["soak: folders left"] == 0


def test_a_side_counts_every_execution_of_its_blocks() -> None:
    async def execute(worker: int) -> bool:
        await asyncio.sleep(0)
        return True

    side = throughput.Side(execute, executions=7)
    asyncio.run(side.block(3))
    asyncio.run(side.block(3))
    assert (len(side.latencies), len(side.rates)) == (14, 2)


def test_an_execution_that_goes_wrong_ends_the_benchmark() -> None:
    async def execute(worker: int) -> bool:
        return False

    with pytest.raises(RuntimeError, match="went wrong"):
        asyncio.run(throughput.Side(execute, executions=1).block(1))


def test_a_part_that_does_not_exist_is_refused() -> None:
    assert list(PARTS) == ["throughput", "creation", "attacks", "survivors", "soak", "step"]
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])


def test_creation_is_measured_warm_cold_and_in_a_new_process(
    landlock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the others cost seconds
    monkeypatch.setattr(creation, "usable_backends", lambda *_: ["landlock"])
    figures = Figures()
    creation.measure(figures, argparse.Namespace(rounds=1, creations=5, image="absent:0"))
    warm, cold, tail, new, lives = (row.value for row in figures.rows)
    assert 0 < warm <= tail
    # a host is started; in a new process the backend is probed before that
    assert warm < min(cold, new)
    assert lives > 0
    assert [row.target for row in figures.rows[:2]] == ["<= 50", "<= 150"]


async def test_the_tool_in_process_answers_as_the_sandboxed_one() -> None:
    (record,) = await ToolExecutor([python]).run(
        [ToolCall("0", "python", {"code": "print(6 * 7)"})]
    )
    assert record.result is not None
    assert (record.result.content, record.result.error) == ("42", None)
