"""Short machine: plays runs in a cgroup whose limit leaves less than they may have, and prints what
became of each as JSON.

Arguments: the backend, whether sandboxes have cgroups of their own (0 or 1), and the folder of the
cgroup with the limit, in which this process is.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import Limits, Sandbox
from agentrl.sandbox.forkserver import cgroups
from agentrl.sandbox.forkserver.launcher import LocalLauncher
from agentrl.sandbox.forkserver.local import BubblewrapLauncher
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox

MIB = 2**20
LIMITS = Limits(wall_s=30, memory_bytes=256 * MIB)
HOLD = "held = bytearray(60 * 2**20)\nprint(len(held))"
IN_A_CHILD = f"""
import os
if os.fork() == 0:
    {HOLD.replace(chr(10), "; ")}
    os._exit(0)
print(os.wait()[1])
"""
ENDS_ITSELF = "import os\nheld = bytearray(230 * 2**20)\nos.kill(os.getpid(), 9)"


class Limit:
    """The memory limit of a cgroup."""

    def __init__(self, folder: Path) -> None:
        self._file = next(
            path
            for name in ("memory.limit_in_bytes", "memory.max")
            if (path := folder / name).exists()
        )
        self._used = folder / self._file.name.replace("limit_in", "usage_in").replace(
            "max", "current"
        )

    def leave(self, num_bytes: int) -> None:
        """Let what is in it have so much more."""
        self._file.write_text(str(int(self._used.read_text()) + num_bytes))

    def lift(self) -> None:
        self._file.write_text("-1" if "limit" in self._file.name else "max")


async def outcome(sandbox: Sandbox, code: str, **options: str) -> str:
    try:
        result = await sandbox.run(code, **options)  # type: ignore[arg-type]
    except SandboxError as error:
        return f"SandboxError retryable={error.retryable}: {error}"
    return f"{result.status} {result.detail}"


async def played(server: ForkServer, limit: Limit) -> dict[str, str]:
    found = {}
    for name, code in {"run": HOLD, "child": IN_A_CHILD}.items():
        async with ForkedSandbox(lambda: server, LIMITS) as sandbox:
            await sandbox.run("pass")
            limit.leave(30 * MIB)
            found[name] = await outcome(sandbox, code)
            limit.lift()
    async with ForkedSandbox(lambda: server, LIMITS) as sandbox:
        await sandbox.run(HOLD, persist="interpreter")
        limit.leave(30 * MIB)
        own = bytearray(60 * MIB)  # what rests goes first
        limit.lift()
        found["rest"] = await outcome(sandbox, "print(len(held))", persist="interpreter")
        del own
    async with ForkedSandbox(lambda: server, LIMITS) as sandbox:
        found["ends itself"] = await outcome(sandbox, ENDS_ITSELF)
        found["after"] = await outcome(sandbox, HOLD)
    return found


def main() -> None:
    backend, with_cgroup, folder = sys.argv[1:]
    if with_cgroup == "0":
        cgroups.find_node = lambda: None  # type: ignore[assignment]
    launcher = BubblewrapLauncher() if backend == "bubblewrap" else LocalLauncher()
    server = ForkServer(HostSettings(confine=True, launcher=launcher))
    found = asyncio.run(played(server, Limit(Path(folder))))
    sys.stdout.write(json.dumps(found))
    server.close()


if __name__ == "__main__":
    main()
