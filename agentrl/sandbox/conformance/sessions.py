"""Session checks: an interpreter that keeps its variables, and the report of its end.

A backend that offers none refuses it with a ConfigError, and passes. Code tries to count as a
failure of the sandbox: it does to its interpreter, and to whatever that is led by, all that it can.
Each way must end as a result, for this run and for those after it.
"""

from __future__ import annotations

from functools import partial

from agentrl.errors import ConfigError
from agentrl.sandbox.interface import ExecResult, Sandbox

from .verdict import Factory, Run, Step, checks, expect, step, steps

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


def _lasting(
    rule: str, code: str, timeout_s: float = _PATIENCE_S, **wanted: object
) -> Step:
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
        _lasting(
            "each run has its own output", "print(x)", stdout=b"[1, 2, 3]\n", stderr=b""
        ),
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


_ROUNDS = 3
_RECOVERY_RUNS = 3
_STATUSES = ("ok", "error", "timeout", "oom", "killed", "output_limit")

PRELUDE = """
import ctypes, os, signal, socket, stat, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def sockets():
    found = []
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode): found.append(socket.socket(fileno=os.dup(fd)))
        except OSError: pass
    return found
def each(action):
    for s in sockets():
        try: action(s)
        except OSError: pass
def flood(s):
    s.setblocking(False)
    while s.send(bytes(4096)): pass
def forge(s): s.send(struct.pack('!i', 0))
def end(): os.kill(os.getpid(), signal.SIGKILL)
def timer(number, every_ns):  # of the kernel's, which sends the signal whatever the process does
    event = (ctypes.c_int * 16)(0, 0, number, 0)
    made = ctypes.c_void_p()
    libc.timer_create(1, event, ctypes.byref(made))
    libc.timer_settime(made, 0, (ctypes.c_long * 4)(0, every_ns, 0, every_ns), None)
"""

PROGRAMS = {
    "shuts its socket for reading": "each(lambda s: s.shutdown(socket.SHUT_RD))",
    "shuts its socket for writing": "each(lambda s: s.shutdown(socket.SHUT_WR))",
    "shuts its socket": "each(lambda s: s.shutdown(socket.SHUT_RDWR))",
    "closes its socket": "os.closerange(3, 256)",
    "puts another socket in its place": """
ours, theirs = socket.socketpair()
for s in sockets():
    for fd in range(3, 256):
        try: same = os.path.samestat(os.fstat(fd), os.fstat(s.fileno()))
        except OSError: continue
        if same and fd != s.fileno(): os.dup2(theirs.fileno(), fd)
""",
    "floods its socket": "each(flood)",
    "floods its socket and ends itself": "each(flood)\nend()",
    "writes an exit code": "each(forge)",
    "writes an exit code and ends itself": "each(forge)\nend()",
    "writes an exit code, then ends itself": "each(forge)\ntime.sleep(0.01)\nend()",
    "writes an exit code and goes "
    "on": "each(forge)\nend = time.monotonic() + 0.2\nwhile time.monotonic() < end: pass",
    "writes half an exit code": "each(lambda s: s.send(b'00'))",
    "sends urgent data": "each(lambda s: s.send(b'!', socket.MSG_OOB))",
    "asks for credentials on its "
    "socket": "each(lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1))",
    "gives its socket a deadline": """
each(lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 1000)))
""",
    "sends its own descriptors": "each(lambda s: socket.send_fds(s, [b'!'], [0, 1, 2]))",
    "reads its socket in a thread": """
def read(s):
    s.setblocking(True)
    while s.recv(1): pass
for s in sockets(): threading.Thread(target=read, args=(s,), daemon=True).start()
""",
    "leaves no descriptor free": """
held = []
try:
    while True: held.append(os.open('/dev/null', os.O_RDONLY))
except OSError: pass
""",
    "leaves no memory": """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2**20, resource.getrlimit(resource.RLIMIT_AS)[1]))
""",
    "ends itself while it rests": "timer(signal.SIGKILL, 20_000_000)",
    "wakes itself while it rests": """
signal.signal(signal.SIGCONT, lambda *_: None)
timer(signal.SIGCONT, 100_000_000)
def burn():
    for _ in range(10**9): pass
threading.Thread(target=burn, daemon=True).start()
""",
    "has a child wake it": """
for _ in range(8):
    if os.fork() == 0:
        for _ in range(1_000_000): os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
""",
    "ends its whole group": "if os.getpgid(0) == os.getpid(): os.kill(0, signal.SIGKILL)",
    "becomes another program": "os.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "ends its first thread alone": """
threading.Thread(target=time.sleep, args=(60,)).start()
libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
""",
    "gives its files names beyond measure": """
folder = os.path.join(*[b'\\xff' * 250] * 12)
os.makedirs(folder, exist_ok=True)
for n in range(1000): open(os.path.join(folder, b'%d' % n), 'w').close()
""",
    "closes every folder": """
os.makedirs('a/b/c', exist_ok=True)
open('a/b/c/d', 'w').close()
for path in ('a/b/c', 'a/b', 'a', '.', os.environ['TMPDIR']): os.chmod(path, 0)
""",
    "nests folders deeply": """
for _ in range(2000):
    os.mkdir('d'); os.chdir('d')
""",
}

# processes that each live for some millionths of a second and leave the next one: no list of them
# holds when it is used
COMETS = """
import mmap
code = bytes.fromhex(
    "bb404b4c00"  # five million times:
    "ffcb741a"
    "b838000000bf1101000031f631d24d31d24d31c00f05"  # clone(CLONE_VM | SIGCHLD)
    "85c07ee2"  # the child, and a parent that was refused one, again
    "31ffb83c0000000f05"  # the parent ends
)
if os.uname().machine == 'x86_64':
    area = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE, prot=7)
    area.write(code)
    start = ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    for _ in range(4):
        if os.fork() == 0: start()
    time.sleep(0.1)
"""


async def _excuse(code: str, sandbox: Sandbox) -> None:
    """The program in the interpreter that persists, and runs after it, until one prints what it
    should.
    """
    for _ in range(_ROUNDS):
        await last(sandbox, "x = 1")
        result = await last(sandbox, PRELUDE + code, timeout_s=2.0)
        expect(result.status in _STATUSES, "it is a result", result)
        await sandbox.list_files()
        for _ in range(_RECOVERY_RUNS):
            result = await last(sandbox, "print(6 * 7)", timeout_s=5.0)
            if result.stdout == b"42\n":
                break
        expect(
            result.stdout == b"42\n",
            f"within {_RECOVERY_RUNS} runs the sandbox does what it should",
            result,
        )
        result = await sandbox.run("print(6 * 7)", persist="files")
        expect(result.stdout == b"42\n", "and so does a fresh interpreter", result)


async def _fresh(code: str, sandbox: Sandbox) -> None:
    """The program in an interpreter of its own."""
    for _ in range(_ROUNDS):
        result = await sandbox.run(PRELUDE + code, timeout_s=2.0)
        expect(result.status in _STATUSES, "it is a result", result)
        result = await sandbox.run("print(6 * 7)")
        expect(result.stdout == b"42\n", "the sandbox goes on", result)


EXCUSES = checks(
    "processes",
    {
        **{
            f"code that {name}": where_offered(steps(partial(_excuse, code)))
            for name, code in PROGRAMS.items()
        },
        "processes that are gone when they are found": steps(partial(_fresh, COMETS)),
        "such processes beside an interpreter that persists": where_offered(
            steps(partial(_excuse, COMETS))
        ),
    },
)
