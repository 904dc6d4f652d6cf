"""Tracked run: what an outlet is told of the run whose numbers it gets, and each step once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.metrics.sinks import OutletSink
from agentrl.metrics.timing import PhaseTimes


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as outlets know it.

    Args:
        root: the run directory.
        id: the same in every attempt of the run, and no other run's.
        settings: by dotted key, as JSON has them, without secrets.
        say: tells a person something, such as an address; from any thread.
        known: of each stage the last step that an earlier attempt told, and its numbers' names.
    """

    root: Path
    id: str
    settings: Mapping[str, Any]
    say: Callable[[str], None]
    known: Mapping[str, tuple[int, Collection[str]]]

    @property
    def name(self) -> str:
        """For people."""
        return self.root.resolve().name


class TrackerSink(OutletSink):
    """Keeps each number of a step once: none that an earlier attempt of the run told.

    Args:
        run: the run.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._known = run.known

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        prefix: str = "",
        times: Sequence[PhaseTimes] = (),
    ) -> None:
        last, told = self._known.get(prefix, (-1, ()))
        # An attempt that ended in an evaluation left it to the next one; the rest of its last step
        # was told.
        own = {
            name: value
            for name, value in values.items()
            if step > last or (name.startswith("eval/") and name not in told)
        }
        if step >= last and own:
            self.keep(
                step, {f"{prefix}/{name}": float(value) for name, value in own.items()}
            )

    @abstractmethod
    def keep(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a step; the stage is part of each name."""
