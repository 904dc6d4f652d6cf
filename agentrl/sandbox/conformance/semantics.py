"""What a run means: status, exit code, signal, output, limits, input, state."""

from __future__ import annotations

import asyncio
import math
import os
import time

from agentrl.errors import ConfigError
from agentrl.sandbox.interface import ExecResult
from agentrl.sandbox.limits import Limits

from .verdict import Check, Factory, expect, expect_status

_SIGSEGV = 11
_SIGTERM = 15
_PATIENCE_S = 30.0  # far beyond any deadline below: a loaded machine must not fail a sandbox


async def _run(factory: Factory, code: str | bytes | None = None, **options: object) -> ExecResult:
    async with factory() as sandbox:
        return await sandbox.run(code, **options)  # type: ignore[arg-type]


async def _ok(factory: Factory) -> None:
    result = await _run(factory, "print(6 * 7)")
    expect_status(result, "ok")
    expect(
        (result.exit_code, result.signal) == (0, None),
        "a plain end is exit code 0 and no signal",
        result,
    )
    expect(
        result.stdout == b"42\n" and result.stderr == b"", "stdout holds what was printed", result
    )
    expect(result.wall_s > 0 and result.cpu_s > 0, "wall and processor time are measured", result)


async def _exit_codes(factory: Factory) -> None:
    async with factory() as sandbox:
        for code, exit_code in (
            ("import sys; sys.exit(3)", 3),
            ("exit()", 0),
            ("raise SystemExit('no')", 1),
        ):
            result = await sandbox.run(code)
            expect(result.exit_code == exit_code, f"{code!r} must exit with {exit_code}", result)
        result = await sandbox.run(argv=["sh", "-c", "echo out; echo err >&2; exit 7"])
    expect_status(result, "error")
    expect(result.exit_code == 7, "a program's exit code is kept", result)
    expect(
        (result.stdout, result.stderr) == (b"out\n", b"err\n"),
        "both outputs are kept apart",
        result,
    )


async def _exception(factory: Factory) -> None:
    result = await _run(factory, "x = 1\nprint('before')\n1 / 0\n")
    expect_status(result, "error")
    expect(
        result.exit_code == 1 and result.stdout == b"before\n",
        "exit code 1 and the output before it",
        result,
    )
    expect(
        b"ZeroDivisionError" in result.stderr and b"line 3" in result.stderr,
        "a traceback on stderr",
        result,
    )


async def _signal(factory: Factory) -> None:
    async with factory() as sandbox:
        result = await sandbox.run("import ctypes; print('here', flush=True); ctypes.string_at(0)")
        expect_status(result, "error")
        expect(
            (result.exit_code, result.signal) == (None, _SIGSEGV), "a segfault is signal 11", result
        )
        expect(result.stdout == b"here\n", "output before a crash is kept", result)
        result = await sandbox.run(argv=["sh", "-c", "kill -TERM $$"])
        expect(
            (result.exit_code, result.signal) == (None, _SIGTERM),
            "a program's signal is named",
            result,
        )


async def _not_found(factory: Factory) -> None:
    result = await _run(factory, argv=["no-such-program-here"])
    expect_status(result, "error")
    expect(result.exit_code == 127, "a program that does not exist is exit code 127", result)


async def _timeout(factory: Factory) -> None:
    started = time.monotonic()
    async with factory() as sandbox:
        result = await sandbox.run("print('partial', end='')\nwhile True: pass", timeout_s=0.5)
        expect_status(result, "timeout")
        expect(result.stdout == b"partial", "output before the deadline is kept", result)
        expect(time.monotonic() - started < _PATIENCE_S, "the deadline is kept", result)
        expect(
            (await sandbox.run("print(1)")).stdout == b"1\n",
            "the sandbox works after a timeout",
            result,
        )


async def _stubborn(factory: Factory) -> None:
    programs = {
        "ignores signals": "import signal\nfor n in (1, 2, 15, 20): signal.signal(n, signal.SIG_IGN)\nwhile 1: pass",
        "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "holds the interpreter lock in C": "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
    }
    async with factory() as sandbox:
        for name, code in programs.items():
            result = await sandbox.run(code, timeout_s=0.5)
            expect(result.status == "timeout", f"code that {name} must time out", result)


async def _cpu_limit(factory: Factory) -> None:
    result = await _run(factory, "while True: pass", limits=Limits(wall_s=60, cpu_s=1))
    expect_status(result, "timeout")


async def _output_limit(factory: Factory) -> None:
    async with factory() as sandbox:
        limits = Limits(output_bytes=10_000)
        result = await sandbox.run("while True: print('y' * 99)", limits=limits)
        expect_status(result, "output_limit")
        expect(
            len(result.stdout) == 10_000 and result.stdout_truncated,
            "what fits the limit is kept",
            result,
        )
        result = await sandbox.run("import os\nos.write(2, b'x' * 10_000_000)", limits=limits)
        expect_status(result, "output_limit")
        expect(
            result.stderr_truncated and not result.stdout_truncated,
            "each output has its own mark",
            result,
        )


async def _binary(factory: Factory) -> None:
    every_byte = bytes(range(256)) * 16
    result = await _run(factory, "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 16)")
    expect(result.stdout == every_byte, "output is bytes, not text", result.stdout[:300])


async def _stdin(factory: Factory) -> None:
    async with factory() as sandbox:
        result = await sandbox.run(
            "import sys\nprint(len(sys.stdin.buffer.read()))", stdin=b"\x00\xff" * 500_000
        )
        expect(result.stdout == b"1000000\n", "all of stdin arrives", result)
        result = await sandbox.run("input()")
        expect(b"EOFError" in result.stderr, "stdin ends where nothing was given", result)
        result = await sandbox.run("print(1)", stdin=b"x" * 1_000_000)
        expect_status(result, "ok")
        result = await sandbox.run("import sys\nprint(repr(sys.stdin.read()))", stdin=b"")
        expect(result.stdout == b"''\n", "what a run left unread is gone", result)
        result = await sandbox.run(
            "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')"
        )  # TIOCSTI: type for whoever reads next
        expect_status(result, "error")
        result = await sandbox.run("import os\nos.write(0, b'x')")
        expect_status(result, "error")


async def _environment(factory: Factory) -> None:
    name = "AGENTRL_CONFORMANCE_SECRET"
    os.environ[name] = "of the owner"
    try:
        result = await _run(
            factory,
            "import os\nprint(os.environ.get('GIVEN'), dict(os.environ))",
            env={"GIVEN": "yes"},
        )
    finally:
        del os.environ[name]
    expect(result.stdout.startswith(b"yes "), "variables given for the run arrive", result)
    expect(name.encode() not in result.stdout, "the owner's variables do not", result)


async def _odd_code(factory: Factory) -> None:
    async with factory() as sandbox:
        expect_status(await sandbox.run(""), "ok")
        for code in (b"print('\xff')", "print('\ud800')", "print(1", "a\0b", "nonlocal x"):
            result = await sandbox.run(code)
            expect_status(result, "error")
            expect(
                b"Error" in result.stderr, "what is wrong with the code is said on stderr", result
            )
        result = await sandbox.run(
            "x = 1\n" + "# " + "y" * 5_000_000 + "\nprint(x)", timeout_s=_PATIENCE_S
        )
        expect(result.stdout == b"1\n", "5 MB of code run", result)
        result = await sandbox.run("(" * 5000 + ")" * 5000)
        expect_status(result, "error")


async def _main_module(factory: Factory) -> None:
    code = (
        "import dataclasses, pickle, threading\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
        "assert pickle.loads(pickle.dumps(A())) == A()\n"
        "def late(): print('thread', flush=True)\n"
        "if __name__ == '__main__': threading.Timer(0.05, late).start(); print('main')"
    )
    result = await _run(factory, code)
    expect(
        result.stdout == b"main\nthread\n",
        "the code is __main__, and its threads are waited for",
        result,
    )


async def _memory_error(factory: Factory) -> None:
    limits = Limits(memory_bytes=64 * 2**20)
    async with factory() as sandbox:
        result = await sandbox.run("print('start')\nx = bytearray(500 * 2**20)", limits=limits)
        expect_status(result, "oom")
        expect(result.stdout == b"start\n", "output before it is kept", result)
        result = await sandbox.run("x = []\nwhile True: x.append(bytearray(2**20))", limits=limits)
        expect_status(result, "oom")
        result = await sandbox.run("print(len(bytearray(30 * 2**20)))", limits=limits)
        expect_status(result, "ok")


async def _concurrent(factory: Factory) -> None:
    async def one(number: int) -> None:
        async with factory() as sandbox:
            for turn in range(3):
                result = await sandbox.run(
                    f"import time; time.sleep(0.02); print({number}, {turn})"
                )
                expect(
                    result.stdout == f"{number} {turn}\n".encode(),
                    "each caller gets its own result",
                    result,
                )

    async with factory() as sandbox:
        await asyncio.gather(*(one(number) for number in range(8)))
        same = await asyncio.gather(*(sandbox.run(f"print({number})") for number in range(8)))
    expect(
        [r.stdout for r in same] == [f"{n}\n".encode() for n in range(8)],
        "also in one sandbox",
        same,
    )


async def _state(factory: Factory) -> None:
    leave = (
        "import builtins, os, random, sys, json\nbuiltins.print = None\nbuiltins.left = 1\nsys.modules['json'] = None\n"
        "os.environ['LEFT'] = '1'\nos.chdir('/')\nsys.path.insert(0, '/left')\nos.umask(0)\n"
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))"
    )
    look = (
        "import builtins, json, os, resource, sys\n"
        "print(hasattr(builtins, 'left'), json is None, 'LEFT' in os.environ, os.getcwd() == '/', '/left' in sys.path,"
        " 'left' in globals(), resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 20)"
    )
    async with factory() as sandbox:
        await sandbox.run(leave)
        result = await sandbox.run(look)
        expect(
            result.stdout.split() == [b"False"] * 7,
            "nothing of an interpreter is left for the next run",
            result,
        )
        drawn = [
            (await sandbox.run("import random; print(random.random())")).stdout for _ in range(2)
        ]
        expect(drawn[0] != drawn[1], "random numbers differ from run to run", drawn)


async def _cancel(factory: Factory) -> None:
    async with factory() as sandbox:
        await sandbox.write_file("kept", b"1")
        task = asyncio.create_task(sandbox.run("while True: pass", timeout_s=_PATIENCE_S))
        await asyncio.wait([task], timeout=0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        started = time.monotonic()
        result = await sandbox.run("print(open('kept').read())")
        expect(result.stdout == b"1\n", "after a cancelled run the session goes on", result)
        expect(
            time.monotonic() - started < _PATIENCE_S / 2,
            "and does not wait for the cancelled one",
            result,
        )


async def _bad_arguments(factory: Factory) -> None:
    async with factory() as sandbox:
        for timeout_s in (-1.0, 0.0, math.inf, math.nan):
            try:
                result = await sandbox.run("print(1)", timeout_s=timeout_s)
            except ConfigError:
                continue
            expect(False, f"timeout_s={timeout_s} must be a ConfigError", result)
        programs: tuple[tuple[str | None, list[str] | None], ...]
        programs = ((None, None), ("1", ["ls"]), (None, []), (None, ["\0"]))
        for code, argv in programs:
            try:
                result = await sandbox.run(code, argv=argv)
            except ValueError:
                continue
            expect(False, f"code={code!r} with argv={argv!r} must be a ValueError", result)


SEMANTICS = tuple(
    Check(name, None, run)
    for name, run in (
        ("ok", _ok),
        ("exit codes", _exit_codes),
        ("uncaught exception", _exception),
        ("signal", _signal),
        ("program not found", _not_found),
        ("timeout keeps partial output", _timeout),
        ("stubborn code times out", _stubborn),
        ("processor time limit", _cpu_limit),
        ("output limit", _output_limit),
        ("binary output", _binary),
        ("stdin", _stdin),
        ("environment", _environment),
        ("odd code", _odd_code),
        ("main module and threads", _main_module),
        ("memory limit", _memory_error),
        ("concurrent runs", _concurrent),
        ("no interpreter state between runs", _state),
        ("cancelled run", _cancel),
        ("bad arguments", _bad_arguments),
    )
)
