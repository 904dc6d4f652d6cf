"""Whether the kernel ended processes of a whole container because its memory was spent, whoever spent it."""

from __future__ import annotations

import os

_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # cgroup 2, cgroup 1


class Pressure:
    """Counts the kernel's out-of-memory kills in the container that this process is in."""

    def __init__(self) -> None:
        self._path = next((path for path in _COUNTERS if os.path.exists(path)), None)
        self._seen = self._kills()

    def killed(self) -> bool:
        """Whether there were any since the last call; False where the container does not say (gVisor)."""
        before, self._seen = self._seen, self._kills()
        return self._seen > before

    def _kills(self) -> int:
        if self._path is None:
            return 0
        with open(self._path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
