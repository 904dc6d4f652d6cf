"""An interpreter that keeps its variables: what lasts, what does not, and that its end is said.

A backend that offers none refuses it with a ConfigError, and passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentrl.errors import ConfigError
from agentrl.sandbox.interface import ExecResult, Sandbox

from .verdict import Check, Factory, expect, expect_status

_PATIENCE_S = 30.0


async def last(sandbox: Sandbox, code: str, timeout_s: float = _PATIENCE_S) -> ExecResult:
    return await sandbox.run(code, persist="interpreter", timeout_s=timeout_s)


async def _kept(factory: Factory) -> None:
    async with factory() as sandbox:
        await last(sandbox, "x = [1]\ndef more(): x.append(len(x) + 1)")
        result = await last(sandbox, "more()\nprint(x)")
        expect(result.stdout == b"[1, 2]\n", "variables and functions last", result)
        result = await last(sandbox, "more()\n1 / 0")
        expect(
            result.status == "error" and not result.interpreter_ended,
            "an exception ends only its run",
            result,
        )
        result = await last(sandbox, "print(x)")
        expect(
            (result.stdout, result.stderr) == (b"[1, 2, 3]\n", b""),
            "each run has its own output",
            result,
        )
        result = await sandbox.run("print('x' in globals())", persist="files")
        expect(
            result.stdout == b"False\n", "a run that asks for a fresh interpreter gets one", result
        )


async def _lost(factory: Factory) -> None:
    async with factory() as sandbox:
        for code, status in (("while True: pass", "timeout"), ("import os\nos._exit(3)", "error")):
            await last(sandbox, "x = 1")
            result = await last(sandbox, code, timeout_s=2.0)
            expect_status(result, status)
            expect(
                result.interpreter_ended and bool(result.detail),
                "the end of the interpreter is said",
                result,
            )
            result = await last(sandbox, "print('x' in globals())")
            expect(result.stdout == b"False\n", "the next run starts afresh", result)


async def _apart(factory: Factory) -> None:
    async with factory() as one, factory() as other:
        await last(one, "secret = 1")
        result = await last(other, "print('secret' in globals())")
        expect(result.stdout == b"False\n", "another sandbox has other variables", result)
        await one.reset()
        result = await last(one, "print('secret' in globals())")
        expect(result.stdout == b"False\n", "a reset ends them", result)


async def _survivors(factory: Factory) -> None:
    beat = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True:\n"
        "            open('beat', 'a').write('.'); time.sleep(0.01)\n    os._exit(0)\n"
        "while not os.path.exists('beat'): time.sleep(0.01)"
    )
    look = "import os, time\nbefore = os.path.getsize('beat')\ntime.sleep(0.3)\nprint(os.path.getsize('beat') - before)"
    async with factory() as sandbox:
        expect_status(await last(sandbox, beat), "ok")
        result = await sandbox.run(look)
        expect(result.stdout == b"0\n", "a child does not outlive its run", result)


def where_offered(
    check: Callable[[Factory], Awaitable[None]],
) -> Callable[[Factory], Awaitable[None]]:
    async def run(factory: Factory) -> None:
        async with factory() as sandbox:
            try:
                await last(sandbox, "pass")
            except ConfigError:
                return
        await check(factory)

    return run


SESSIONS = tuple(
    Check(name, None, where_offered(run))
    for name, run in (
        ("variables of an interpreter that persists", _kept),
        ("the end of an interpreter that persists", _lost),
        ("interpreters of two sandboxes", _apart),
        ("children of an interpreter that persists", _survivors),
    )
)
