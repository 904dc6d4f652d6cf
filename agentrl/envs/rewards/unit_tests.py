"""Unit tests: whether the code of the final text passes the task's tests, in sandboxes.

The policy's code can forge nothing: it never runs in the process that runs the tests, and never
sees what they expect (``programs``). It is given arguments and gives plain values back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.envs.rewards.answers import said_text
from agentrl.envs.rewards.programs import CALLS, TESTS
from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import RewardError
from agentrl.sandbox import ExecResult, Limits, Sandbox, SandboxSpec

_FENCE = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_MAX_ROUNDS = 20
_OUTPUT_BYTES = 16 * 2**20


async def unit_tests(
    view: EpisodeView, *, timeout_s: float = 10.0, partial: bool = False, backend: str = "auto"
) -> Score:
    """1.0 where the code passes every test, else 0.0; with ``partial`` the share that it passes.

    The code is the last fenced block of the final text, or the whole of it, or what was submitted.
    The tests are ``task.info["tests"]``, or else ``task.answer``: a list of Python texts that call
    the code's functions (MBPP's ``test_list``), or ``{"inputs": [...], "outputs": [...]}``, whose
    outputs a program must print. ``task.info["test_setup"]`` goes before each Python text.

    Functions are given and give numbers, texts, bytes, None, and lists, tuples, sets and dicts of
    these; what they change in place is not seen.

    Args:
        view: the episode.
        timeout_s: seconds for the code, of all calls of a round together, or for one input.
        partial: give the share of tests that pass.
        backend: of the sandboxes.

    Raises:
        RewardError: the task has no tests, or they fail by themselves.
        SandboxError: a sandbox failed.
    """
    tests = view.task.info.get("tests", view.task.answer)
    text = said_text(view)
    fenced = _FENCE.findall(text)
    code = fenced[-1] if fenced else text
    spec = SandboxSpec(backend, limits=Limits(wall_s=timeout_s, output_bytes=_OUTPUT_BYTES))
    async with spec.build() as sandbox:
        if isinstance(tests, Mapping):
            passed = await _passed_outputs(sandbox, code, tests, view.task.id)
        else:
            texts = _texts(tests, view.task.id)
            setup = str(view.task.info.get("test_setup", ""))
            async with spec.build() as apart:
                passed = await _Tests(sandbox, apart, code, texts, setup, view.task.id).passed()
    good = sum(problem == "" for problem in passed)
    share = good / len(passed)
    why = {"passed": good, "tests": len(passed), "problems": [one for one in passed if one][:5]}
    return Score(share if partial else float(good == len(passed)), why)


def _texts(tests: Any, task_id: str) -> list[str]:
    listed = [tests] if isinstance(tests, str) else tests
    is_list = isinstance(listed, Sequence) and bool(listed)
    if not is_list or not all(isinstance(one, str) for one in listed):
        raise RewardError(
            f"unit_tests needs the tests of task {task_id!r}, as task.info['tests'] or its answer: "
            f"a list of Python texts, or inputs and outputs, got {tests!r:.200}"
        )
    return list(listed)


async def _passed_outputs(
    sandbox: Sandbox, code: str, tests: Mapping[str, Any], task_id: str
) -> list[str]:
    """For each input an empty text, or what is wrong with the output."""
    inputs, outputs = tests.get("inputs") or (), tests.get("outputs") or ()
    if not inputs or len(inputs) != len(outputs):
        raise RewardError(
            f"unit_tests of task {task_id!r} needs as many inputs as outputs, and at least one, "
            f"got {len(inputs)} and {len(outputs)}"
        )
    problems = []
    for given, wanted in zip(inputs, outputs, strict=True):
        await sandbox.reset()
        result = await sandbox.run(code, stdin=str(given).encode())
        printed = result.stdout.decode(errors="replace")
        if result.status != "ok":
            problems.append(_ended(result))
        elif _lines(printed) != _lines(str(wanted)):
            problems.append(f"printed {printed[:200]!r}")
        else:
            problems.append("")
    return problems


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _ended(result: ExecResult) -> str:
    last = result.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
    return f"{result.status}: {result.detail or last[:200]}".rstrip(": ")


@dataclass(frozen=True, slots=True)
class _Tests:
    """The tests of a task and the code that they are about.

    Args:
        sandbox: of the policy's code.
        apart: of the tests.
        code: the policy's.
        texts: the tests, as Python.
        setup: Python before each.
        task_id: for errors.
    """

    sandbox: Sandbox
    apart: Sandbox
    code: str
    texts: Sequence[str]
    setup: str
    task_id: str

    async def passed(self) -> list[str]:
        """For each test an empty text, or what is wrong.

        Raises:
            RewardError: the tests cannot be run.
        """
        table: dict[str, Any] = {}
        verdicts: list[Any] = [None] * len(self.texts)
        for _ in range(_MAX_ROUNDS):
            verdicts, asked = await self._verdicts(table)
            if not asked:
                break
            keys = [*table, *asked]
            table = dict(zip(keys, await self._results(keys), strict=True))
        return [
            "too many calls that depend on each other" if verdict is None else verdict[1]
            for verdict in verdicts
        ]

    async def _verdicts(self, table: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
        """What passed and failed on a table of results, and the calls that it lacks."""
        given = {"setup": self.setup, "tests": self.texts, "table": list(table.items())}
        files = {"tests.json": json.dumps(given).encode()}
        result = await self.apart.run(TESTS, files=files, fetch=["verdicts.json"])
        if "verdicts.json" not in result.files or result.status != "ok":
            raise RewardError(
                f"unit_tests: the tests of task {self.task_id!r} cannot be run ({_ended(result)}); "
                "correct them"
            )
        verdicts, asked = json.loads(result.files["verdicts.json"])
        return verdicts, asked

    async def _results(self, keys: Sequence[str]) -> list[Any]:
        """What the code gives for calls, made one after the other in a fresh process."""
        files = {
            "calls.json": f"[{', '.join(keys)}]".encode(),
            "solution.py": self.code.encode(errors="replace"),
        }
        await self.sandbox.reset()
        result = await self.sandbox.run(CALLS, files=files)
        found: list[Any] = [None] * len(keys)
        for line in result.stdout.splitlines():
            _take(line, found)
        lost = ["raised", ["RuntimeError", f"no result ({_ended(result)})"]]
        return [one or lost for one in found]


def _take(line: bytes, found: list[Any]) -> None:
    """A call's result from a line, which the code may have written itself: a value is all that it
    can choose.
    """
    try:
        number, kind, value = json.loads(line)
        if kind == "gave":
            _check_packed(value)
        elif kind != "raised" or not all(isinstance(text, str) for text in value):
            return
        if found[number] is None and number >= 0:
            found[number] = [kind, value]
    except (ValueError, TypeError, IndexError, RecursionError):
        return


_CHECKED_KINDS = {"i": int, "f": float, "c": complex}


def _check_packed(value: Any) -> None:
    """Raises where a value is none that the tests' sandbox can read, such as a set of lists."""
    if not isinstance(value, list):
        if value is not None and not isinstance(value, str | bool):
            raise TypeError("no packed value")
        return
    kind, inner = value
    if kind in _CHECKED_KINDS:
        _CHECKED_KINDS[kind](inner)
    elif kind == "b" and isinstance(inner, list):  # of a number it would be that many bytes
        bytes(inner)
    elif kind == "d":
        for key, own in inner:
            _check_packed(key)
            _check_packed(own)
    elif kind in ("l", "t", "s", "z"):
        for own in inner:
            _check_packed(own)
    else:
        raise ValueError("no packed value")
