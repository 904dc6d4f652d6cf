"""Courier: delivers to one place outside of the run, in a thread of its own.

- Who gives something never waits, and no error of the place reaches it.
- What waits is bounded: what comes while the queue is full is lost, told and counted.
- At the end the queue has some seconds; then it is given up by name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from agentrl.errors import MachineError, StoreError
from agentrl.types.user_code.place import said_by
from agentrl.types.user_code.wall import wall

logger = logging.getLogger(__name__)

T = TypeVar("T")
Told: TypeAlias = Callable[[str, str], None]
"""Is told an event by name, and its text; from any thread."""

CAPACITY = 256
CLOSE_S = 10.0


def do_nothing(*_: object) -> None:
    """For who has nothing to do."""


class Courier(Generic[T]):
    """Opens an outlet, and delivers to it in order.

    Args:
        name: of the outlet in messages, such as ``metrics.wandb``.
        open_outlet: makes the outlet, in the thread; where that fails, before each delivery again.
        told: is told what fails, beside the log.
        capacity: deliveries that may wait.
    """

    def __init__(
        self,
        name: str,
        open_outlet: Callable[[], T],
        told: Told = do_nothing,
        *,
        capacity: int = CAPACITY,
    ) -> None:
        self._name = name
        self._open = open_outlet
        self._told = told
        self._capacity = capacity
        self._outlet: T | None = None
        self._last: Callable[[T], object] = do_nothing
        self._failing = False
        # guards the count of what was lost: several threads may give
        self._lock = threading.Lock()
        self._lost = 0
        # what waits for the thread; None ends it
        self._waiting: SimpleQueue[Callable[[T], object] | None] = SimpleQueue()
        # a daemon, so that an outlet that hangs holds up no exit
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, delivery: Callable[[T], object]) -> None:
        """Has something delivered, unless too much waits already."""
        if self._waiting.qsize() < self._capacity:
            self._waiting.put(delivery)
            return
        with self._lock:
            self._lost += 1
            first = self._lost == 1
        if first:
            text = f"is {self._capacity} deliveries behind, and loses what comes until it goes on"
            self._tell("sink_behind", text)

    def end(self, last: Callable[[T], object]) -> None:
        """Takes nothing more; ``last`` comes behind all that waits, where the outlet opened."""
        self._last = last
        self._waiting.put(None)

    def join(self, until: float) -> None:
        """Waits for the end until a monotonic second, and tells how much was lost."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            lost = self._lost + self._waiting.qsize() - 1
            self._tell(
                "sink_behind", f"does not end, and is given up: {lost} deliveries are lost"
            )
        elif self._lost:
            self._tell("sink_behind", f"was too slow: {self._lost} deliveries are lost")

    def _run(self) -> None:
        self._deliver(do_nothing)
        while (delivery := self._waiting.get()) is not None:
            self._deliver(delivery)
        if self._outlet is not None:
            self._deliver(self._last)

    def _deliver(self, delivery: Callable[[T], object]) -> None:
        try:
            with wall(lambda error: MachineError(said_by(error)), passes=()):
                if self._outlet is None:
                    self._outlet = self._open()
                delivery(self._outlet)
        except MachineError as error:
            if not self._failing:
                text = f"failed, and is tried again with what comes next: {error}"
                self._tell("sink_failed", text)
            self._failing = True
        else:
            self._failing = False

    def _tell(self, event: str, text: str) -> None:
        text = f"{self._name} {text}; the run directory has everything"
        logger.warning("%s", text, extra={"event": event})
        # a disk that takes no event ends the run where it takes no numbers
        with suppress(StoreError):
            self._told(event, text)


def end_all(
    couriers: Collection[Courier[Any]],
    last: Callable[[Any], object] = do_nothing,
    close_s: float = CLOSE_S,
) -> None:
    """Ends couriers, which have ``close_s`` seconds together."""
    for courier in couriers:
        courier.end(last)
    until = time.monotonic() + close_s
    for courier in couriers:
        courier.join(until)
