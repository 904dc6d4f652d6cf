"""Semantics checks: status, exit code, signal, output, limits, input and state of a run."""

from __future__ import annotations

import asyncio
import math
import os
import time
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sandbox.interface import Limits, Sandbox

from .verdict import Factory, checks, expect, has, step, steps

_SIGSEGV = 11
_SIGTERM = 15
# far beyond any deadline below: a loaded machine must not fail a sandbox
_PATIENCE_S = 30.0
_OUTPUT = Limits(output_bytes=10_000)
_MEMORY = Limits(memory_bytes=64 * 2**20)
_SECRET = "AGENTRL_CONFORMANCE_SECRET"
_SEGFAULT = "import ctypes; print('here', flush=True); ctypes.string_at(0)"
_STUBBORN = {
    "ignores signals": "import signal\nfor n in (1, 2, 15, 20): signal.signal(n, "
    "signal.SIG_IGN)\nwhile 1: pass",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "holds the interpreter lock in C": "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
}
_MAIN = (
    "import dataclasses, pickle, threading\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
    "assert pickle.loads(pickle.dumps(A())) == A()\n"
    "go = threading.Event()\n"
    "def late(): go.wait(); threading.Event().wait(0.05); print('thread', flush=True)\n"
    "if __name__ == '__main__': threading.Thread(target=late).start(); print('main', flush=True); "
    "go.set()"
)
_LEAVE = (
    "import builtins, os, random, sys, json\nbuiltins.print = None\nbuiltins.left = "
    "1\nsys.modules['json'] = None\n"
    "os.environ['LEFT'] = '1'\nos.chdir('/')\nsys.path.insert(0, '/left')\nos.umask(0)\n"
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))"
)
_LOOK = (
    "import builtins, json, os, resource, sys\n"
    "print(hasattr(builtins, 'left'), json is None, 'LEFT' in os.environ, os.getcwd() == '/', "
    "'/left' in sys.path,"
    " 'left' in globals(), resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 20)"
)


def _positive(value: float) -> bool:
    return value > 0


async def _timeout(factory: Factory) -> None:
    started = time.monotonic()
    await steps(
        step(
            "output before the deadline is kept",
            "print('partial', end='')\nwhile True: pass",
            {"status": "timeout", "stdout": b"partial"},
            timeout_s=0.5,
        ),
        step("the sandbox works after a timeout", "print(1)", {"stdout": b"1\n"}),
    )(factory)
    seconds = time.monotonic() - started
    expect(seconds < _PATIENCE_S, "the deadline is kept", seconds)


async def _environment(factory: Factory) -> None:
    look = "import os\nprint(os.environ.get('GIVEN'), dict(os.environ))"
    os.environ[_SECRET] = "of the owner"
    try:
        async with factory() as sandbox:
            result = await sandbox.run(look, env={"GIVEN": "yes"})
    finally:
        del os.environ[_SECRET]
    expect(result.stdout.startswith(b"yes "), "variables given for the run arrive", result)
    expect(_SECRET.encode() not in result.stdout, "the owner's variables do not", result)


async def _concurrent(factory: Factory) -> None:
    async def one(number: int) -> None:
        await steps(
            *(
                step(
                    "each caller gets its own result",
                    f"import time; time.sleep(0.02); print({number}, {turn})",
                    {"stdout": f"{number} {turn}\n".encode()},
                )
                for turn in range(3)
            )
        )(factory)

    async with factory() as sandbox:
        await asyncio.gather(*(one(number) for number in range(8)))
        same = await asyncio.gather(
            *(sandbox.run(f"print({number})") for number in range(8))
        )
    found = [r.stdout for r in same]
    expect(found == [f"{n}\n".encode() for n in range(8)], "also in one sandbox", same)


async def _state(sandbox: Sandbox) -> None:
    look = step(
        "nothing of an interpreter is left for the next run",
        _LOOK,
        {"stdout": lambda output: output.split() == [b"False"] * 7},
    )
    await sandbox.run(_LEAVE)
    await look(sandbox)
    one = await sandbox.run("import random; print(random.random())")
    other = await sandbox.run("import random; print(random.random())")
    expect(one.stdout != other.stdout, "random numbers differ from run to run", one)


async def _cancel(sandbox: Sandbox) -> None:
    await sandbox.write_file("kept", b"1")
    task = asyncio.create_task(sandbox.run("while True: pass", timeout_s=_PATIENCE_S))
    await asyncio.wait([task], timeout=0.3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    started = time.monotonic()
    read = "print(open('kept').read())"
    after = step("after a cancelled run the session goes on", read, {"stdout": b"1\n"})
    await after(sandbox)
    seconds = time.monotonic() - started
    expect(seconds < _PATIENCE_S / 2, "and does not wait for the cancelled one", seconds)


async def _bad_arguments(sandbox: Sandbox) -> None:
    timeouts = (-1.0, 0.0, math.inf, math.nan)
    refused: dict[type[Exception], list[dict[str, Any]]] = {
        ValueError: [{}, {"code": "1", "argv": ["ls"]}, {"argv": []}, {"argv": ["\0"]}],
        ConfigError: [{"code": "1", "timeout_s": seconds} for seconds in timeouts],
    }
    for error, calls in refused.items():
        for options in calls:
            try:
                result = await sandbox.run(**options)
            except error:
                continue
            expect(False, f"{options} must be a {error.__name__}", result)


SEMANTICS = checks(
    None,
    {
        "ok": steps(
            step(
                "a plain end is exit code 0, with what was printed and the time that it took",
                "print(6 * 7)",
                {
                    "status": "ok",
                    "exit_code": 0,
                    "signal": None,
                    "stdout": b"42\n",
                    "stderr": b"",
                    "wall_s": _positive,
                    "cpu_s": _positive,
                },
            )
        ),
        "exit codes": steps(
            step("sys.exit sets it", "import sys; sys.exit(3)", {"exit_code": 3}),
            step("exit() is a plain end", "exit()", {"exit_code": 0}),
            step("a message is exit code 1", "raise SystemExit('no')", {"exit_code": 1}),
            step(
                "a program's exit code and both outputs are kept",
                None,
                {"status": "error", "exit_code": 7, "stdout": b"out\n", "stderr": b"err\n"},
                argv=["sh", "-c", "echo out; echo err >&2; exit 7"],
            ),
        ),
        "uncaught exception": steps(
            step(
                "exit code 1, the output before it, and a traceback on stderr",
                "x = 1\nprint('before')\n1 / 0\n",
                {
                    "status": "error",
                    "exit_code": 1,
                    "stdout": b"before\n",
                    "stderr": has(b"ZeroDivisionError", b"line 3"),
                },
            )
        ),
        "signal": steps(
            step(
                "a segfault is signal 11, and output before it is kept",
                _SEGFAULT,
                {
                    "status": "error",
                    "exit_code": None,
                    "signal": _SIGSEGV,
                    "stdout": b"here\n",
                },
            ),
            step(
                "a program's signal is named",
                None,
                {"exit_code": None, "signal": _SIGTERM},
                argv=["sh", "-c", "kill -TERM $$"],
            ),
        ),
        "program not found": steps(
            step(
                "a program that does not exist is exit code 127",
                None,
                {"status": "error", "exit_code": 127},
                argv=["no-such-program-here"],
            )
        ),
        "timeout keeps partial output": _timeout,
        "stubborn code times out": steps(
            *(
                step(
                    f"code that {name} must time out",
                    code,
                    {"status": "timeout"},
                    timeout_s=0.5,
                )
                for name, code in _STUBBORN.items()
            )
        ),
        "processor time limit": steps(
            step(
                "processor time is limited",
                "while True: pass",
                {"status": "timeout"},
                limits=Limits(wall_s=60, cpu_s=1),
            )
        ),
        "output limit": steps(
            step(
                "what fits the limit is kept",
                "while True: print('y' * 99)",
                {
                    "status": "output_limit",
                    "stdout": lambda output: len(output) == 10_000,
                    "stdout_truncated": True,
                },
                limits=_OUTPUT,
            ),
            step(
                "each output has its own mark",
                "import os\nos.write(2, b'x' * 10_000_000)",
                {
                    "status": "output_limit",
                    "stderr_truncated": True,
                    "stdout_truncated": False,
                },
                limits=_OUTPUT,
            ),
        ),
        "binary output": steps(
            step(
                "output is bytes, not text",
                "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 16)",
                {"stdout": bytes(range(256)) * 16},
            )
        ),
        "stdin": steps(
            step(
                "all of stdin arrives",
                "import sys\nprint(len(sys.stdin.buffer.read()))",
                {"stdout": b"1000000\n"},
                stdin=b"\x00\xff" * 500_000,
            ),
            step(
                "stdin ends where nothing was given",
                "input()",
                {"stderr": has(b"EOFError")},
            ),
            step(
                "it may stay unread", "print(1)", {"status": "ok"}, stdin=b"x" * 1_000_000
            ),
            step(
                "what a run left unread is gone",
                "import sys\nprint(repr(sys.stdin.read()))",
                {"stdout": b"''\n"},
            ),
            # TIOCSTI
            step(
                "nobody can type for the next reader",
                "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')",
                {"status": "error"},
            ),
            step(
                "nobody can write to it",
                "import os\nos.write(0, b'x')",
                {"status": "error"},
            ),
        ),
        "environment": _environment,
        "odd code": steps(
            step("no code is a plain end", "", {"status": "ok"}),
            *(
                step(
                    "what is wrong with the code is said on stderr",
                    code,
                    {"status": "error", "stderr": has(b"Error")},
                )
                for code in (
                    b"print('\xff')",
                    "print('\ud800')",
                    "print(1",
                    "a\0b",
                    "nonlocal x",
                )
            ),
            step(
                "5 MB of code run",
                "x = 1\n" + "# " + "y" * 5_000_000 + "\nprint(x)",
                {"stdout": b"1\n"},
                timeout_s=_PATIENCE_S,
            ),
            step("deep nesting is an error", "(" * 5000 + ")" * 5000, {"status": "error"}),
        ),
        "main module and threads": steps(
            step(
                "the code is __main__, and its threads are waited for",
                _MAIN,
                {"stdout": b"main\nthread\n"},
            )
        ),
        "memory limit": steps(
            step(
                "output before it is kept",
                "print('start')\nx = bytearray(500 * 2**20)",
                {"status": "oom", "stdout": b"start\n"},
                limits=_MEMORY,
            ),
            step(
                "many small pieces count",
                "x = []\nwhile True: x.append(bytearray(2**20))",
                {"status": "oom"},
                limits=_MEMORY,
            ),
            step(
                "less than the limit is granted",
                "print(len(bytearray(30 * 2**20)))",
                {"status": "ok"},
                limits=_MEMORY,
            ),
        ),
        "concurrent runs": _concurrent,
        "no interpreter state between runs": steps(_state),
        "cancelled run": steps(_cancel),
        "bad arguments": steps(_bad_arguments),
    },
)
