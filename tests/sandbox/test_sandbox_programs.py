"""Ordinary programs under the filter of system calls: what they need is there, and files outside
stay as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.sandbox import BackendReport, ExecResult, Limits, SandboxSpec

ROOMY = Limits(wall_s=60, memory_bytes=2**30)
BACKENDS = ("landlock", "bubblewrap")


async def ran(backend: str, code: str, **settings: Any) -> ExecResult:
    async with SandboxSpec(backend, require="none").build() as sandbox:
        return await sandbox.run(code, limits=ROOMY, **settings)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_huge_pages_are_off_and_stay_off(
    backend: str, landlock: BackendReport
) -> None:
    code = "import ctypes\nc = ctypes.CDLL(None)\nprint(c.prctl(42, 0, 0, 0, 0), c.prctl(41, 0, 0, 0, 0))"  # noqa: E501
    assert (await ran(backend, code)).stdout == b"1 -1\n"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_code_uses_threads_processes_and_pipes(
    backend: str, landlock: BackendReport
) -> None:
    code = """
import asyncio, os, select, socket, subprocess, threading
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(100))))
print(subprocess.run(["sh", "-c", "echo a | cat | tee f"], capture_output=True).stdout)
async def main():
    process = await asyncio.create_subprocess_exec("echo", "b", stdout=subprocess.PIPE)
    return await process.communicate()
print(asyncio.run(main()))
one, other = socket.socketpair()
one.send(b"c"); print(other.recv(9), select.select([], [one], [])[1] == [one])
"""
    result = await ran(backend, code)
    assert result.stdout == b"4950\nb'a\\n'\n(b'b\\n', None)\nb'c' True\n", result


@pytest.mark.parametrize("backend", BACKENDS)
async def test_code_copies_packs_and_changes_its_own_files(
    backend: str, landlock: BackendReport
) -> None:
    if backend == "landlock" and "user" not in landlock.held:
        pytest.skip(
            "landlock refuses modes and times where the uid is the user's own: docs/sandbox.md"
        )
    code = """
import os, shutil, sqlite3, subprocess, tarfile
os.mkdir("d")
with open("d/x", "w") as file: file.write("#!/bin/sh\\necho ran\\n")
os.chmod("d/x", 0o755)
shutil.copytree("d", "e"); shutil.copy2("d/x", "f")
with tarfile.open("t.tgz", "w:gz") as tar: tar.add("d")
with tarfile.open("t.tgz") as tar: tar.extractall("o", filter="data")
print(subprocess.run(["o/d/x"], capture_output=True).stdout)
fd = os.open("f", os.O_RDONLY)
os.fchmod(fd, 0o600); os.utime(fd, (1, 1)); os.fchown(fd, -1, -1)
print(oct(os.fstat(fd).st_mode), os.fstat(fd).st_mtime)
with sqlite3.connect("db") as db: print(db.execute("pragma journal_mode=wal").fetchone())
subprocess.run(["cp", "-p", "d/x", "g"], check=True)
# which read attributes
subprocess.run(["cp", "-a", "d", "h"], check=True)
subprocess.run(["ls", "-l", "h"], check=True, stdout=subprocess.DEVNULL)
"""
    result = await ran(backend, code)
    assert (result.stdout, result.stderr) == (b"b'ran\\n'\n0o100600 1.0\n('wal',)\n", b"")


@pytest.mark.parametrize("backend", BACKENDS)
async def test_memory_that_is_private_and_anonymous_is_mapped(
    backend: str, landlock: BackendReport
) -> None:
    code = """
import mmap
try: mmap.mmap(-1, 4096)
except PermissionError: print("refused")
print(len(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))
with open("f", "w+b") as file:
    file.truncate(4096)
    print(len(mmap.mmap(file.fileno(), 4096)))
"""
    assert (await ran(backend, code)).stdout == b"refused\n4096\n4096\n"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_node_runs(backend: str, landlock: BackendReport) -> None:
    if shutil.which("node", path="/usr/bin:/bin") is None:
        pytest.skip("node is missing: apt-get install -y nodejs")
    script = """
const fs = require('fs'), { execSync } = require('child_process'), { Worker } = require('worker_threads');
fs.writeFileSync('a', 'hello'); fs.copyFileSync('a', 'b');
new Worker("require('worker_threads').parentPort.postMessage('thread')", { eval: true })
  .on('message', said => console.log(said, fs.readFileSync('b') + '', execSync('echo child') + ''));
"""  # noqa: E501
    async with SandboxSpec(backend, require="none").build() as sandbox:
        limits = Limits(wall_s=60, memory_bytes=4 * 2**30, processes=64)
        result = await sandbox.run(argv=["node", "-e", script], limits=limits)
    assert result.stdout == b"thread hello child\n\n", result


C_PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void *seven(void *out) { *(int *)out = 7; return 0; }
int main(void) {
    pthread_t thread;
    int seen = 0, status;
    long args[11] = {0};
    pthread_create(&thread, 0, seven, &seen);
    pthread_join(thread, 0);
    printf("thread %d\\n", seen);
    printf("clone3 %ld\\n", syscall(435, args, sizeof args));  /* absent: it falls back */
    fflush(stdout);
    if (fork() == 0) _exit(3);
    wait(&status);
    printf("child %d, system %d\\n", WEXITSTATUS(status), system("true"));
    return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "musl-gcc"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_program_with_a_c_library_of_its_own_runs(
    backend: str, compiler: str, landlock: BackendReport, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is missing: apt-get install -y gcc libc6-dev musl-tools")
    if backend == "landlock" and "user" not in landlock.held:
        pytest.skip(
            "landlock refuses modes where the uid is the user's own: docs/sandbox.md"
        )
    (tmp_path / "program.c").write_text(C_PROGRAM)
    built = tmp_path / "program"
    subprocess.run(
        [compiler, "-static", "-pthread", "-o", built, tmp_path / "program.c"], check=True
    )
    code = "import os, subprocess\nos.chmod('p', 0o700)\nprint(subprocess.run(['./p'], capture_output=True).stdout)"  # noqa: E501
    result = await ran(backend, code, files={"p": built.read_bytes()})
    assert result.stdout == b"b'thread 7\\nclone3 -1\\nchild 3, system 0\\n'\n", result


@pytest.fixture(scope="module")
def numpy_folder() -> Iterator[str]:
    """numpy alone, where any backend can show it: bubblewrap gives each run a /tmp of its own, and
    the clone that is tested may lie there.
    """
    import numpy

    installed = Path(numpy.__file__).parents[1]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        for name in ("numpy", "numpy.libs"):
            shutil.copytree(installed / name, Path(folder) / name)
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
async def test_numpy_multiplies_with_the_threads_of_its_blas(
    backend: str, landlock: BackendReport, numpy_folder: str
) -> None:
    from agentrl.sandbox.forkserver.launcher import LocalLauncher
    from agentrl.sandbox.forkserver.local import BubblewrapLauncher
    from agentrl.sandbox.forkserver.server import ForkServer, HostSettings
    from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox

    folders = (numpy_folder,)
    launcher = BubblewrapLauncher(folders) if backend == "bubblewrap" else LocalLauncher()
    server = ForkServer(HostSettings(confine=True, folders=folders, launcher=launcher))
    code = "import numpy as np\na = np.eye(600) * 2\nprint(int(np.trace(a @ np.linalg.inv(a @ a) @ a)))"  # noqa: E501
    async with ForkedSandbox(lambda: server, Limits()) as sandbox:
        result = await sandbox.run(code, limits=ROOMY, env={"OPENBLAS_NUM_THREADS": "4"})
    server.close()
    assert result.stdout == b"600\n", result


# --- where the uid is the user's
# -----------------------------------------------------------------------------------

AS_NOBODY = """
import asyncio, os, sys
from agentrl.sandbox import Limits
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings

ATTACK = '''
import ctypes, fcntl, os
os.chdir("/")
fd = os.open(PATH, os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
tries = (lambda: os.fchmod(fd, 0), lambda: os.utime(fd, (1, 1)), lambda: os.fchown(fd, -1, os.getgid()),
    lambda: os.setxattr(fd, "user.x", b"y"), lambda: fcntl.ioctl(fd, 0x40086602, bytes(8)),
    lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK), lambda: os.chmod(PATH, 0), lambda: os.utime(PATH, (1, 1)))
print([number for number, attempt in enumerate(tries) if not refuses(attempt)])
'''
ATTACK = "def refuses(attempt):\\n try: attempt()\\n except OSError: return True\\n" + ATTACK
ATTACK = ATTACK.replace("PATH", repr(sys.argv[1]))
server = ForkServer(HostSettings(confine=True, folders=(os.path.dirname(sys.argv[1]),)))

async def main():
    async with ForkedSandbox(lambda: server, Limits()) as sandbox:
        result = await sandbox.run(ATTACK)
        sys.stdout.write(result.stdout.decode() + result.stderr.decode())

asyncio.run(main())
server.close()
"""  # noqa: E501
NOBODY = 65534


def test_code_changes_no_file_that_its_uid_owns_outside(
    landlock: BackendReport, tmp_path: Path
) -> None:
    """As with an interpreter of uv, pyenv or conda: its files are readable, and the user's own."""
    import agentrl

    if os.getuid() != 0:
        pytest.skip("only root can start a program as another user")
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if not os.path.exists(python):
        pytest.skip(f"{python} is missing: an interpreter that any user can reach")
    folder = Path("/var/tmp") / f"agentrl-{os.urandom(6).hex()}"
    folder.mkdir()
    try:
        module = folder / "module.py"
        module.write_text("")
        for path in (folder, module):
            os.chown(path, NOBODY, NOBODY)
        before = module.stat()
        paths = [
            str(Path(agentrl.__file__).parents[1]),
            *(path for path in sys.path if path.endswith("-packages")),
        ]
        done = subprocess.run(
            [python, "-c", AS_NOBODY, str(module)],
            env={
                "PYTHONPATH": os.pathsep.join(paths),
                "PATH": os.environ["PATH"],
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd="/",
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
        assert (module.stat().st_mode, module.stat().st_mtime_ns) == (
            before.st_mode,
            before.st_mtime_ns,
        )
    finally:
        shutil.rmtree(folder)


async def test_landlock_shows_of_files_outside_what_the_page_says(
    landlock: BackendReport,
) -> None:
    code = """
import os
found = os.stat(FOLDER + "/file")
print(found.st_size, oct(found.st_mode), found.st_mtime, os.readlink(FOLDER + "/link"))
for look in (lambda: open(FOLDER + "/file"), lambda: os.listdir(FOLDER),
             lambda: os.listxattr(FOLDER + "/file")):
    try: look()
    except OSError as error: print(error.errno)
"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        file = Path(folder, "file")
        file.write_text("secret")
        file.chmod(0o644)
        os.utime(file, (1, 2))
        Path(folder, "link").symlink_to("/some/where")
        result = await ran("landlock", code.replace("FOLDER", repr(folder)))
    assert result.stdout == b"6 0o100644 2.0 /some/where\n13\n13\n95\n", result


@pytest.mark.parametrize("backend", BACKENDS)
async def test_there_is_no_dev_zero_and_dev_full_reads_as_zeros(
    backend: str, landlock: BackendReport
) -> None:
    code = """
print(open("/dev/full", "rb").read(3))
try: open("/dev/zero")
except OSError as error: print(type(error).__name__)
"""
    result = await ran(backend, code)
    assert result.stdout.splitlines()[0] == b"b'\\x00\\x00\\x00'", result
    assert len(result.stdout.splitlines()) == 2, result
