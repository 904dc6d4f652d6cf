"""SGLang's own launch on a machine without a GPU, whose processes are forked from the one that has
imported SGLang.

SGLang has each of them spawned, which CUDA needs. Spawned, each imports everything anew: 22 of the
39 processor seconds that a server of a tiny model takes to start.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy

_set_start_method = multiprocessing.set_start_method


def set_start_method(method: str | None, force: bool = False) -> None:
    """Takes the place of ``multiprocessing``'s own."""
    # A forked process has one thread, and waits for ever for a lock that another one held.
    alone = len(os.listdir("/proc/self/task")) == 1
    _set_start_method("fork" if alone else method, force)


if __name__ == "__main__":
    multiprocessing.set_start_method = set_start_method
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
