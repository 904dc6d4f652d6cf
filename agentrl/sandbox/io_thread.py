"""I/O thread: an event loop on a daemon thread, for the sockets of hosts and of the proxy."""

from __future__ import annotations

from agentrl.types.machine.loop_thread import LoopThread


class IOThread(LoopThread):
    """A thread for sockets; everything that it does is a callable on it.

    It lives as long as the server that it spawned, since a death signal of the kernel's follows the
    spawning thread, not the process.
    """
