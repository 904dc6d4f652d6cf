"""Child: the process that runs the code; gives up every right, then runs Python or a program."""

from __future__ import annotations

import _sitebuiltins
import atexit
import builtins
import gc
import io
import linecache
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from ..confine import landlock, marks, memory, namespaced_slot, namespaces, seccomp
from ..confine.libc import prctl
from . import session

CODE_NAME = "main.py"
NOT_EXECUTABLE = 126
NOT_FOUND = 127
_OOM_HEADROOM = 16 * 2**20  # lets an interpreter that ran out of memory still print that it did
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True)
class Confinement:
    """What the child enters before it runs anything: made once a slot."""

    abi: int
    ruleset: int | None
    own_uid: bool
    namespaced: bool = False
    # TCP connections may be made; the namespace leaves them nowhere to lead but to the proxy
    proxied: bool = False

    def filter(self) -> bytes:
        """The seccomp program for this process."""
        if (
            self.namespaced
        ):  # no file and no process of others is in sight, whatever Landlock can do
            return seccomp.build_filter(
                own_uid=True,
                abi=seccomp.NEWEST_ABI,
                pid=None,
                proxied=self.proxied,
                preallocates=True,
            )
        pid = os.getpid() if seccomp.names_pid(self.abi) else None
        return seccomp.build_filter(own_uid=self.own_uid, abi=self.abi, pid=pid)


@dataclass(frozen=True)
class RunJob:
    """One run, as the child sees it."""

    code: bytes | None
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    limits: dict[str, Any]
    confinement: Confinement | None
    address_space: int | None  # bytes mapped already; the memory limit counts from here
    process_limit: int | None
    keep: Sequence[int] = field(default=())
    slot: int = 0  # the pid of its parent, as it sees it
    control: socket.socket | None = None  # of the session whose interpreter this child becomes
    bound: memory.Bound | None = None


def warm_up() -> None:
    """Do once, before any fork, what each run would otherwise do again in its own memory."""
    package = (__package__ or "").rpartition(".")[0]
    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        del sys.modules[name]  # the code's imports must not find the host's modules
    exec(_compile(b"pass", CODE_NAME), {})
    linecache.clearcache()


def run(job: RunJob, stdio: tuple[int, int, int], status: int) -> NoReturn:
    """Never returns. What fails before the code starts is written to ``status``; nothing written
    means it started.
    """
    code = 1
    try:
        try:
            _prepare(job, stdio, status)
        except BaseException as error:  # noqa: BLE001  the boundary: reported to the slot, which names it
            os.write(status, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        if job.code is None:
            code = _execute(job.argv, job.env)  # the status pipe closes on exec
        else:
            os.close(status)
            if job.control is not None:
                session.serve(job.control, _Interpreter().run)
            code = _interpret(job.code)
    finally:
        os._exit(code)


def _prepare(job: RunJob, stdio: tuple[int, int, int], status: int) -> None:
    os.setsid()
    if job.bound is not None:
        job.bound.enter()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    for target, fd in enumerate(stdio):
        os.dup2(fd, target)
    confinement = job.confinement
    ruleset = None if confinement is None else confinement.ruleset
    kept = (ruleset, job.control.fileno() if job.control else None)
    _close_all_but({0, 1, 2, status, *job.keep, *(fd for fd in kept if fd is not None)})
    if confinement is not None and confinement.namespaced:
        namespaced_slot.enter_run()
    elif sys.platform == "linux":
        _belong_to(job)
    os.chdir(job.cwd)
    os.environ.clear()
    os.environ.update(job.env)
    _set_limits(job)
    if confinement is not None:
        _confine(confinement)


def _confine(confinement: Confinement) -> None:
    """Give up for ever what a run may not do."""
    if confinement.namespaced or confinement.ruleset is None:  # else the slot counts files it holds
        prctl(_PR_SET_DUMPABLE, 0)
    if confinement.namespaced:
        namespaces.drop_capabilities()
    if confinement.ruleset is not None:
        landlock.restrict_self(confinement.abi, confinement.ruleset)
        os.close(confinement.ruleset)
    seccomp.install(confinement.filter())


def _belong_to(job: RunJob) -> None:
    """End with the slot; what this process starts need not, and is known by its mark."""
    if job.confinement is None or job.confinement.ruleset is not None:
        marks.mark_self()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != job.slot:
        os._exit(1)  # it ended before


def _close_all_but(keep: set[int]) -> None:
    """No descriptor of the host may be forged or read by the code."""
    start = 0
    for fd in sorted(keep):
        if start < fd:  # an empty range would mean "to the end"
            os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _set_limits(job: RunJob) -> None:
    limits = job.limits
    wanted: list[tuple[int, int, int]] = [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
    ]
    if limits["cpu_s"] is not None:
        seconds = max(1, -int(-limits["cpu_s"] // 1))
        wanted.append((resource.RLIMIT_CPU, seconds, seconds + 1))
    if job.process_limit is not None:
        wanted.append((resource.RLIMIT_NPROC, job.process_limit, job.process_limit))
    if job.address_space is not None:
        soft = job.address_space + limits["memory_bytes"]
        wanted.append((resource.RLIMIT_AS, soft, soft + _OOM_HEADROOM))
    for kind, soft, hard in wanted:
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft = min(soft, ceiling)
            hard = min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def _execute(argv: tuple[str, ...], env: dict[str, str]) -> int:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        os.write(2, f"{argv[0]}: not found\n".encode(errors="replace"))
        return NOT_FOUND
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: {error}\n".encode(errors="replace"))
        return NOT_EXECUTABLE


def _interpret(code: bytes) -> int:
    """Run ``code`` as ``__main__`` and answer with the exit code that an interpreter would give."""
    try:
        exit_code = _Interpreter().run(code, {})
        threading._shutdown()  # type: ignore[attr-defined]  # as an ending interpreter: waits for threads
    finally:
        atexit._run_exitfuncs()
        _flush()
    return exit_code


class _Interpreter:
    """Runs that share one ``__main__``."""

    def __init__(self) -> None:
        _fresh_interpreter()
        self._main = ModuleType("__main__")
        self._main.__dict__.update(__builtins__=builtins, __file__=CODE_NAME)
        sys.modules["__main__"] = self._main
        self._num_runs = 0

    def run(self, code: bytes, env: dict[str, str]) -> int:
        """One run; answers with the exit code that an interpreter would give."""
        self._num_runs += 1
        os.environ.update(env)
        _fresh_streams()
        # a name of its own, so that a traceback shows the lines of the run that they come from
        name = CODE_NAME if self._num_runs == 1 else f"main-{self._num_runs}.py"
        try:
            exit_code = _run_in(self._main, code, name)
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and not thread.daemon:
                    thread.join()
        finally:
            _flush()
        return exit_code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the code closed it, or nobody reads any more


def _fresh_interpreter() -> None:
    tempfile.tempdir = None  # the host's own choice, made before TMPDIR was the sandbox's
    sys.argv = [CODE_NAME]
    sys.path.insert(0, os.getcwd())
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    if (
        "numpy.random" in sys.modules
    ):  # the standard library's generator reseeds itself after a fork
        sys.modules["numpy.random"].seed()
    gc.enable()


def _fresh_streams() -> None:
    sys.stdin = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape"
    )
    # unbuffered, so that what was printed before a timeout is kept
    raw = [io.FileIO(fd, "w", closefd=False) for fd in (1, 2)]
    sys.stdout = io.TextIOWrapper(raw[0], "utf-8", "surrogateescape", write_through=True)
    sys.stderr = io.TextIOWrapper(raw[1], "utf-8", "backslashreplace", write_through=True)


def _run_in(main: ModuleType, code: bytes, name: str) -> int:
    try:
        exec(_compile(code, name), main.__dict__)
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:  # noqa: BLE001  the boundary: what an interpreter prints for its main program
        _report(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _compile(code: bytes, name: str) -> Any:
    try:
        text = code.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SyntaxError(
            f"the code is not valid UTF-8: {error.reason} at byte {error.start}"
        ) from None
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    return compile(text, name, "exec", dont_inherit=True)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201  what an interpreter does with sys.exit("text")
    return 1


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # the frames above the code's own
    try:
        if isinstance(error, MemoryError):
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            if soft != hard:
                resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(kind, error, trace, file=sys.stderr)
        else:
            sys.excepthook(kind, error, trace)
    except MemoryError:
        os.write(2, b"MemoryError\n")
    except BaseException:  # noqa: BLE001  the boundary: the code broke its own standard error or hook
        os.write(2, f"{kind.__name__}\n".encode())
