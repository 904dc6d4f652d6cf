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
import sys
import tempfile
import threading
import traceback
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from .. import frames, proc
from ..confine import landlock, namespaces, seccomp
from ..confine.libc import prctl
from .session import InterpreterSession, serve
from .slot import Slot

CODE_NAME = "main.py"
# descriptors
Stdio = tuple[int, int, int]
NOT_EXECUTABLE = 126
NOT_FOUND = 127
# lets an interpreter that ran out of memory still print that it did
_OOM_HEADROOM = 16 * 2**20
# processes that the user may start meanwhile
_SHARED_UID_MARGIN = 256
# of a run, POSIX timers among them: the kernel counts them by user
_QUEUED_SIGNALS = 64
_PR_SET_PDEATHSIG = 1
# of Linux, on every architecture here; Python 3.11 has no name for it
_RLIMIT_SIGPENDING = 11
_PR_SET_DUMPABLE = 4


def warm_up() -> None:
    """Do once, before any fork, what each run would otherwise do again in its own memory."""
    package = (__package__ or "").rpartition(".")[0]
    for name in [
        name for name in sys.modules if name == package or name.startswith(package + ".")
    ]:
        # the code's imports must not find the host's modules
        del sys.modules[name]
    exec(_compile(b"pass", CODE_NAME), {})
    linecache.clearcache()


def run(
    slot: Slot,
    header: frames.Header,
    code: bytes,
    session: InterpreterSession | None,
    stdio: Stdio,
    status: int,
) -> NoReturn:
    """Never returns. What fails before the code starts is written to ``status``; nothing written
    means it started.

    Args:
        slot: the parent.
        header: the request.
        code: the source, where the request names no program.
        session: whose interpreter this process becomes; None runs the code once.
        stdio: the pipes of the run.
        status: a pipe.
    """
    exit_code = 1
    try:
        try:
            _prepare(slot, header, session, stdio, status)
        except BaseException as error:  # noqa: BLE001
            # The boundary: the slot names it.
            os.write(status, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        if header["argv"] is not None:
            # the status pipe closes on exec
            exit_code = _execute(header["argv"])
        else:
            os.close(status)
            if session is not None:
                serve(session.theirs, _Interpreter().run)
            exit_code = _interpret(code)
    finally:
        os._exit(exit_code)


def _prepare(
    slot: Slot,
    header: frames.Header,
    session: InterpreterSession | None,
    stdio: Stdio,
    status: int,
) -> None:
    os.setsid()
    config = slot.config
    # before /proc is out of sight
    mapped_bytes = _mapped_bytes()
    queued_signals = _queued_signals()
    if slot.bound is not None:
        slot.bound.enter()
    # The slot's handlers came over the fork: the code starts with those of a fresh interpreter.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    for target, fd in enumerate(stdio):
        os.dup2(fd, target)
    kept = {0, 1, 2, status, *config.keep}
    if slot.ruleset is not None:
        kept.add(slot.ruleset)
    if session is not None:
        kept.add(session.theirs.fileno())
    _close_all_but(kept)
    if config.namespaced:
        namespaces.enter_run()
    elif sys.platform == "linux":
        _belong_to(slot)
    os.chdir(slot.seen_work)
    os.environ.clear()
    os.environ.update(
        {
            "PATH": config.path,
            **config.env,
            "HOME": slot.seen_work,
            "TMPDIR": slot.seen_temp,
            "LANG": "C.UTF-8",
            "USER": "sandbox",
            "LOGNAME": "sandbox",
            **header["env"],
        }
    )
    # the owner sees to it that the other limits are the same in each run of an interpreter
    cpu_s = None if session is not None else header["limits"]["cpu_s"]
    _set_limits(slot, {**header["limits"], "cpu_s": cpu_s}, mapped_bytes, queued_signals)
    if config.abi is not None:
        _confine(slot, config.abi)


def _confine(slot: Slot, abi: int) -> None:
    """Give up for ever what a run may not do."""
    config = slot.config
    # else the slot counts files it holds
    if config.namespaced or slot.ruleset is None:
        prctl(_PR_SET_DUMPABLE, 0)
    if config.namespaced:
        namespaces.drop_capabilities()
    if slot.ruleset is not None:
        landlock.restrict_self(abi, slot.ruleset)
        os.close(slot.ruleset)
    seccomp.install(config.filter())


def _belong_to(slot: Slot) -> None:
    """End with the slot; what this process starts need not, and is known by its mark."""
    if slot.config.abi != 0:
        proc.mark_self()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != slot.pid:
        # it ended before
        os._exit(1)


def _mapped_bytes() -> int | None:
    """What this process has mapped, from which the memory limit counts; None where RLIMIT_AS does
    not work (macOS).
    """
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _queued_signals() -> int | None:
    """How many of this user's are queued now; None where RLIMIT_SIGPENDING does not exist
    (macOS).
    """
    lines = proc.read("self", "status").splitlines()
    used = (line.split()[1] for line in lines if line.startswith(b"SigQ:"))
    return next((int(word.partition(b"/")[0]) for word in used), None)


def _close_all_but(keep: set[int]) -> None:
    """No descriptor of the host may be forged or read by the code."""
    start = 0
    for fd in sorted(keep):
        # an empty range would mean "to the end"
        if start < fd:
            os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _set_limits(
    slot: Slot, limits: dict[str, Any], mapped_bytes: int | None, queued_signals: int | None
) -> None:
    config = slot.config
    wanted: list[tuple[int, int, int]] = [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
    ]
    if limits["cpu_s"] is not None:
        seconds = max(1, -int(-limits["cpu_s"] // 1))
        wanted.append((resource.RLIMIT_CPU, seconds, seconds + 1))
    processes = None
    if config.uid is not None or (config.namespaced and namespaces.count_processes_apart()):
        processes = limits["processes"] + slot.num_own_processes
    elif config.process_base is not None:
        processes = limits["processes"] + config.process_base + _SHARED_UID_MARGIN
    if processes is not None:
        wanted.append((resource.RLIMIT_NPROC, processes, processes))
    if queued_signals is not None:
        most = queued_signals + _QUEUED_SIGNALS
        wanted.append((_RLIMIT_SIGPENDING, most, most))
    if mapped_bytes is not None:
        soft = mapped_bytes + limits["memory_bytes"]
        wanted.append((resource.RLIMIT_AS, soft, soft + _OOM_HEADROOM))
    for kind, soft, hard in wanted:
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft = min(soft, ceiling)
            hard = min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def _execute(argv: list[str]) -> int:
    # Python ignores both, and an ignored signal stays so over exec: a program expects the default.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
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
        # An ending interpreter waits for threads so.
        threading._shutdown()  # type: ignore[attr-defined]
    finally:
        # The process ends by _exit, which runs none of them.
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
            # the code closed it, or nobody reads any more
            continue


def _fresh_interpreter() -> None:
    # the host's own choice, made before TMPDIR was the sandbox's
    tempfile.tempdir = None
    sys.argv = [CODE_NAME]
    sys.path.insert(0, os.getcwd())
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    # the standard library's generator reseeds itself after a fork
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    # The supervisor turned it off before it forked.
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
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        # An interpreter does so.
        print(error.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException as error:  # noqa: BLE001
        # The boundary: an interpreter prints this for its main program.
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


def _report(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        # the frames above the code's own
        trace = trace.tb_next
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
    except BaseException:  # noqa: BLE001
        # The boundary: the code broke its own standard error or hook.
        os.write(2, f"{kind.__name__}\n".encode())
