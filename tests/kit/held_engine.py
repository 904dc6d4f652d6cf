"""Held engine: a TorchEngine that waits in the middle of its requests, so that they still run when
a call comes, on a machine of any speed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agentrl.engines.torch import TorchEngine
from tests.kit.waiting import DEADLINE_S, until

T = TypeVar("T")


class HeldEngine:
    """Has an engine wait once, after the step in which enough requests run.

    Each of them has a token or two by then. Nothing else of the engine is changed.

    Args:
        engine: before its requests.
        running: requests that must run.
    """

    def __init__(self, engine: TorchEngine, running: int = 1) -> None:
        self._inbox = engine._thread._inbox
        self._health = engine._core.health
        self._step = engine._core.step
        self._wanted = running
        self._holds, self._go_on = threading.Event(), threading.Event()
        engine._core.step = self._held_step  # type: ignore[method-assign]

    def _held_step(self) -> None:
        self._step()
        if not self._holds.is_set() and self._health().running >= self._wanted:
            self._holds.set()
            assert self._go_on.wait(DEADLINE_S)

    def during(self, call: Callable[..., T], *args: object) -> T:
        """What a call of the engine's owner gives that has reached the engine's thread before the
        next step; never called on the loop of the requests.
        """
        assert self._holds.wait(DEADLINE_S), f"never {self._wanted} requests ran"
        before = self._inbox.qsize()
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(call, *args)
            until(lambda: self._inbox.qsize() > before or calling.done())
            self._go_on.set()
            return calling.result()
