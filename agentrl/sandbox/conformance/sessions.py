"""Session checks: an interpreter that keeps its variables, and the report of its end.

A backend that offers none refuses it with a ConfigError, and passes.
"""

from __future__ import annotations

from agentrl.errors import ConfigError
from agentrl.sandbox.interface import ExecResult, Sandbox

from .verdict import Factory, Run, Step, checks, step, steps

_PATIENCE_S = 30.0
_HAS_X = "print('x' in globals())"
_BEAT = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        while True:\n"
    "            open('beat', 'a').write('.'); time.sleep(0.01)\n"
    "    os._exit(0)\n"
    "while not os.path.exists('beat'): time.sleep(0.01)"
)
_LOOK = (
    "import os, time\nbefore = os.path.getsize('beat')\ntime.sleep(0.3)\n"
    "print(os.path.getsize('beat') - before)"
)


async def last(sandbox: Sandbox, code: str, timeout_s: float = _PATIENCE_S) -> ExecResult:
    return await sandbox.run(code, persist="interpreter", timeout_s=timeout_s)


def _lasting(rule: str, code: str, timeout_s: float = _PATIENCE_S, **wanted: object) -> Step:
    """A step in the interpreter that persists."""
    return step(rule, code, wanted, persist="interpreter", timeout_s=timeout_s)


_UNKNOWN = _lasting("the next run starts afresh", _HAS_X, stdout=b"False\n")


def _lost(code: str, status: str) -> tuple[Step, ...]:
    end = _lasting(
        "the end of the interpreter is said",
        code,
        2.0,
        status=status,
        interpreter_ended=True,
        detail=bool,
    )
    return _lasting("it keeps x", "x = 1", status="ok"), end, _UNKNOWN


async def _apart(factory: Factory) -> None:
    async with factory() as one, factory() as other:
        await last(one, "x = 1")
        await _UNKNOWN(other)
        await one.reset()
        await _UNKNOWN(one)


def where_offered(check: Run) -> Run:
    async def run(factory: Factory) -> None:
        async with factory() as sandbox:
            try:
                await last(sandbox, "pass")
            except ConfigError:
                return
        await check(factory)

    return run


_SESSIONS: dict[str, Run] = {
    "variables of an interpreter that persists": steps(
        _lasting("it runs", "x = [1]\ndef more(): x.append(len(x) + 1)", status="ok"),
        _lasting("variables and functions last", "more()\nprint(x)", stdout=b"[1, 2]\n"),
        _lasting(
            "an exception ends only its run",
            "more()\n1 / 0",
            status="error",
            interpreter_ended=False,
        ),
        _lasting("each run has its own output", "print(x)", stdout=b"[1, 2, 3]\n", stderr=b""),
        step(
            "a run that asks for a fresh interpreter gets one",
            _HAS_X,
            {"stdout": b"False\n"},
            persist="files",
        ),
    ),
    "the end of an interpreter that persists": steps(
        *_lost("while True: pass", "timeout"), *_lost("import os\nos._exit(3)", "error")
    ),
    "interpreters of two sandboxes": _apart,
    "children of an interpreter that persists": steps(
        _lasting("it runs", _BEAT, status="ok"),
        step("a child does not outlive its run", _LOOK, {"stdout": b"0\n"}),
    ),
}
SESSIONS = checks(None, {name: where_offered(run) for name, run in _SESSIONS.items()})
