"""Sinks: write metrics as JSON lines and to other sinks, of which none may slow or end the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, Self

from agentrl.metrics.names import with_verl_names
from agentrl.metrics.outlets.courier import CLOSE_S, Courier, Told, do_nothing, end_all
from agentrl.metrics.timing import PhaseTimes

_NO_SINKS: Mapping[str, Callable[[], OutletSink]] = MappingProxyType({})


class Sink(Protocol):
    """Receives the metrics of a step; whoever inherits it leaves out what it has no use for."""

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        """Writes the metrics of ``step`` of the stage ``prefix``; names as in ``names.NAMES``."""

    def close(self, *, failed: bool = False) -> None:
        """Flushes and closes; a second call does nothing. ``failed``: the run came to no end."""


class LineWriter(Protocol):
    """Appends objects as JSON lines, such as ``agentrl.store.JsonlWriter``."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Appends one line."""

    def close(self) -> None:
        """Closes the file; a second call does nothing."""


class JsonlSink:
    """Writes one line a step: ``step``, ``stage``, ``time`` (seconds since the epoch), then the
    numbers by name.

    JSON has no NaN and no infinity: they are written as null, and ``nonfinite`` counts them.

    Args:
        lines: the file.
    """

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        record: dict[str, Any] = {"step": step, "stage": prefix, "time": time.time()}
        for name, value in values.items():
            record[name] = float(value) if math.isfinite(value) else None
        if nonfinite := list(record.values()).count(None):
            record["nonfinite"] = nonfinite
        self._lines.append(record)

    def close(self, *, failed: bool = False) -> None:
        self._lines.close()


class OutletSink(Sink, Protocol):
    """A sink that is told times too."""

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        prefix: str = "",
        times: Sequence[PhaseTimes] = (),
    ) -> None:
        """The same, with the step's times, as ``PhaseTimer.told`` has them."""


class Sinks:
    """Several sinks as one, for the length of a run.

    Args:
        vital: what a run cannot do without: they are written at once, and their errors end the run.
        others: what opens each other sink, by its name in messages. Each is opened and written in a
            thread of its own (``Courier``), which neither slows nor ends the run.
        phases: gets a line a step: ``step``, ``stage``, and ``phases``, the ``PhaseTimes`` of the
            step, of each of its phases, and of what ranks did, as lists.
        verl_names: log each number that verl has a name for under that name too.
        told: is told, beside the log, what the others fail at.
        close_s: seconds that the others have together at the end.
    """

    def __init__(
        self,
        vital: Iterable[Sink],
        others: Mapping[str, Callable[[], OutletSink]] = _NO_SINKS,
        *,
        phases: LineWriter | None = None,
        verl_names: bool = False,
        told: Told = do_nothing,
        close_s: float = CLOSE_S,
    ) -> None:
        self._vital = tuple(vital)
        self._couriers = [Courier(name, opened, told) for name, opened in others.items()]
        self._phases = phases
        self._verl_names = verl_names
        self._close_s = close_s
        self._times: Sequence[PhaseTimes] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close(failed=error is not None)

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        """Writes the metrics of ``step`` of the stage ``prefix`` to every sink."""
        named = with_verl_names(values) if self._verl_names else values
        for sink in self._vital:
            sink.log(step, named, prefix)
        times, self._times = self._times, ()
        if self._phases is not None and times:
            # the loop's have no process, and end there
            phases = [own if own.process else own[:3] for own in times]
            self._phases.append({"step": step, "stage": prefix, "phases": phases})
        for courier in self._couriers:
            courier.give(lambda sink: sink.log(step, named, prefix, times))

    def take_times(self, times: Sequence[PhaseTimes]) -> None:
        """The times of the step whose metrics come next."""
        self._times = times

    def close(self, *, failed: bool = False) -> None:
        """Closes every sink."""
        for sink in self._vital:
            sink.close(failed=failed)
        if self._phases is not None:
            self._phases.close()
        end_all(self._couriers, lambda sink: sink.close(failed=failed), self._close_s)
