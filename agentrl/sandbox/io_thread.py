"""I/O thread: an event loop on a daemon thread, for the sockets of hosts and of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


class IOThread:
    """A daemon thread with an event loop; everything that it does is a callable on that thread.

    It lives as long as the server that it spawned, since a death signal of the kernel's follows the
    spawning thread, not the process.

    Attributes:
        loop: watches the sockets; on the thread only.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        # Runs the loop until stop(); a daemon, as a forked child may never stop it.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the thread, soon; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to do
            self.loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """End the thread; waits for it unless called on it. A second call does nothing."""
        self.call(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        self.loop.run_forever()
        self.loop.close()
