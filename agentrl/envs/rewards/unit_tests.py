"""Unit tests: whether the code of the final text passes the task's tests, in sandboxes.

The policy's code can forge nothing: it never runs in the process that runs the tests, and never
sees what they expect (``unit_test_sides``). It is given arguments and gives plain values back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.envs.rewards.answers import last_block, said_text
from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import RewardError
from agentrl.sandbox import ExecResult, Limits, Sandbox, SandboxSpec
from agentrl.types.user_code.values import shown

_MAX_ROUNDS = 40
_OUTPUT_BYTES = 16 * 2**20
# Of a program's output beyond twice what is expected.
_SPARE_BYTES = 2**16
_LEAST_S = 0.01
# Of standard error.
_READ_BYTES = 2000

_SIDES = Path(__file__).with_name("unit_test_sides")


def _modules(*names: str) -> dict[str, bytes]:
    """Files that a sandbox imports as a package."""
    paths = [_SIDES / f"{name}.py" for name in ("__init__", "plain_values", *names)]
    return {f"{_SIDES.name}/{path.name}": path.read_bytes() for path in paths}


def _program(side: str) -> str:
    return f"from {_SIDES.name}.{side} import main\nmain()\n"


_CODE_SIDE = _modules("code_side")
_TESTS_SIDE = _modules("tests_side", "single_test", "stand_ins")


async def unit_tests(
    view: EpisodeView,
    *,
    timeout_s: float = 10.0,
    total_s: float = 40.0,
    partial: bool = False,
    backend: str = "auto",
) -> Score:
    """1.0 where the code passes every test, else 0.0; with ``partial`` the share that it passes.

    The code is the last fenced block of the final text, or the whole of it, or what was submitted.
    The tests are ``task.info["tests"]``, or else ``task.answer``: a list of Python texts that call
    the code's functions (MBPP's ``test_list``) and use its classes (LeetCode's ``Solution``), or
    ``{"inputs": [...], "outputs": [...]}``, whose outputs a program must print.
    ``task.info["test_setup"]`` goes before each Python text, ``task.info["code_setup"]`` before the
    code that these test.

    What the code is given and gives are numbers, texts, bytes, None, lists, tuples, sets and dicts
    of these, and objects; docs/rewards.md has what these may do. What is changed in place is seen
    where the call gives None. Where the tests run on such values and do not end within their
    limits, the code passes none of them.

    Args:
        view: the episode.
        timeout_s: seconds for the code, of all calls of a round together, or for one input; and for
            the tests of a round.
        total_s: seconds for all of that together; later runs end at once. Keep the rubric's
            deadline above it, so that slow code is wrong and no failure.
        partial: give the share of tests that pass.
        backend: of the sandboxes.

    Raises:
        RewardError: the task has no tests, or they fail by themselves.
        SandboxError: a sandbox failed.
    """
    # Arrow gives a row that lacks a column of its table null there.
    given = {name: value for name, value in view.task.info.items() if value is not None}
    tests = given.get("tests", view.task.answer)
    text = said_text(view)
    block = last_block(text)
    code = text if block is None else block
    time = _Time(Limits(wall_s=timeout_s, output_bytes=_OUTPUT_BYTES), total_s)
    spec = SandboxSpec(backend, limits=time.limits)
    async with spec.build() as sandbox:
        if isinstance(tests, Mapping):
            passed = await _passed_outputs(sandbox, time, code, tests, view.task.id)
        else:
            texts = _texts(tests, view.task.id)
            setup = str(given.get("test_setup", ""))
            before = str(given.get("code_setup", ""))
            async with spec.build() as apart:
                own = _Tests(sandbox, apart, time, code, texts, setup, before, view.task.id)
                passed = await own.passed()
    good = sum(problem == "" for problem in passed)
    share = good / len(passed)
    why = {
        "passed": good,
        "tests": len(passed),
        "problems": [one for one in passed if one][:5],
    }
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
    sandbox: Sandbox, time: _Time, code: str, tests: Mapping[str, Any], task_id: str
) -> list[str]:
    """For each input an empty text, or what is wrong with the output."""
    inputs, outputs = tests.get("inputs") or (), tests.get("outputs") or ()
    are_lists = isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple)
    if not are_lists or not inputs or len(inputs) != len(outputs):
        raise RewardError(
            f"unit_tests of task {task_id!r} needs lists of as many inputs as outputs, and at "
            f"least one, got {shown(inputs)} and {shown(outputs)}"
        )
    problems = []
    for given, wanted in zip(inputs, outputs, strict=True):
        # No run finds what the one before left.
        await sandbox.reset()
        # What is compared on the event loop is no longer than the task itself.
        output_bytes = min(2 * len(str(wanted).encode()) + _SPARE_BYTES, _OUTPUT_BYTES)
        result = await time.run(
            sandbox, code, stdin=str(given).encode(), output_bytes=output_bytes
        )
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
    last = (
        result.stderr[-_READ_BYTES:].decode(errors="replace").rstrip().rpartition("\n")[2]
    )
    return f"{result.status}: {result.detail or last[:200]}".rstrip(": ")


@dataclass(slots=True)
class _Time:
    """What runs may take.

    Args:
        limits: of each.
        left_s: seconds of execution, of all together.
    """

    limits: Limits
    left_s: float

    async def run(
        self,
        sandbox: Sandbox,
        code: str,
        *,
        output_bytes: int = _OUTPUT_BYTES,
        **options: Any,
    ) -> ExecResult:
        """A run within the time that is left."""
        wall_s = max(min(self.limits.wall_s, self.left_s), _LEAST_S)
        limits = self.limits.replace(wall_s=wall_s, output_bytes=output_bytes)
        result = await sandbox.run(code, limits=limits, **options)
        self.left_s -= result.wall_s
        return result


@dataclass(frozen=True, slots=True)
class _Tests:
    """The tests of a task and the code that they are about.

    Args:
        sandbox: of the policy's code.
        apart: of the tests.
        time: that both may take.
        code: the policy's.
        texts: the tests, as Python.
        setup: Python before each.
        code_setup: Python before the code.
        task_id: for errors.
    """

    sandbox: Sandbox
    apart: Sandbox
    time: _Time
    code: str
    texts: Sequence[str]
    setup: str
    code_setup: str
    task_id: str

    async def passed(self) -> list[str]:
        """For each test an empty text, or what is wrong.

        Raises:
            RewardError: the tests cannot be run.
        """
        calls = b"[]"
        results = b""
        given = {
            "setup": self.setup,
            "code_setup": self.code_setup,
            "tests": self.texts,
            "lost": "",
        }
        for number in range(_MAX_ROUNDS):
            told = json.dumps(given).encode()
            files = {"tests.json": told, "calls.json": calls, "results": results}
            files.update(_TESTS_SIDE)
            fetch = ["verdicts.json", "calls.json"]
            program = _program("tests_side")
            result = await self.time.run(self.apart, program, files=files, fetch=fetch)
            if result.status != "ok" or len(result.files) < len(fetch):
                if number == 0:
                    raise self._fault(_ended(result))
                why = f"the tests did not end on what the code gave ({_ended(result)})"
                return [why] * len(self.texts)
            verdicts, asked = json.loads(result.files["verdicts.json"])
            if number == 0:
                for verdict in verdicts:
                    if verdict is not None and not verdict[0]:
                        raise self._fault(verdict[1])
                if not asked:
                    raise self._fault("none of them calls a function or class of it")
            if not asked:
                break
            calls = result.files["calls.json"]
            # Made one after the other in a fresh process.
            await self.sandbox.reset()
            sources = {"setup.py": self.code_setup, "solution.py": self.code}
            files = {name: text.encode(errors="replace") for name, text in sources.items()}
            files.update(_CODE_SIDE, **{"calls.json": calls})
            result = await self.time.run(self.sandbox, _program("code_side"), files=files)
            results = result.stdout
            given["lost"] = f"no result ({_ended(result)})"
        return [
            "too many calls that depend on each other" if verdict is None else verdict[1]
            for verdict in verdicts
        ]

    def _fault(self, why: str) -> RewardError:
        """Of the tests' own, since the code has given nothing yet: every answer would be wrong."""
        return RewardError(
            f"unit_tests: the tests of task {self.task_id!r} fail before they call the code "
            f"({why.rstrip(': ')}); correct them, or leave out what their sandbox does not have"
        )
