"""Sinks: write metrics as JSON lines, and as TensorBoard events if configured."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from agentrl.errors import MachineError
from agentrl.metrics.names import with_verl_names
from agentrl.types.user_code.load import needed
from agentrl.types.user_code.place import described
from agentrl.types.user_code.wall import wall

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Receives the metrics of a step."""

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        """Writes the metrics of ``step`` of the stage ``prefix``; names as in ``names.NAMES``."""

    def close(self) -> None:
        """Flushes and closes; a second call does nothing."""


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

    def close(self) -> None:
        self._lines.close()


class TensorBoardSink:
    """Writes event files for TensorBoard, each name under its stage.

    Args:
        folder: the folder of the files.

    Raises:
        ConfigError: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        with needed("metrics.tensorboard", "tensorboard"):
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self._event = Event
        self._summary = Summary
        self._open = partial(EventFileWriter, str(folder))
        self._writer: Any = None

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        head = f"{prefix}/" if prefix else ""
        numbers = [
            self._summary.Value(tag=head + name, simple_value=float(value))
            for name, value in values.items()
        ]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=numbers))
        self._writer = self._writer or self._open()
        try:
            self._writer.add_event(event)
        except BaseException:
            # one that failed takes nothing more: the next step has another
            self._writer = None
            raise

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Sinks:
    """Several sinks as one. One that fails is told and tried again at the next step; only the
    vital one ends the run.

    Args:
        vital: what a run cannot do without.
        others: each gets every step too.
        verl_names: log each number that verl has a name for under that name too.
        told: is told that a sink begins to fail, beside the log.
    """

    def __init__(
        self,
        vital: Sink,
        others: Iterable[Sink] = (),
        *,
        verl_names: bool = False,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._vital = vital
        self._others = tuple(others)
        self._verl_names = verl_names
        self._told = told
        self._failing: set[Sink] = set()

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        """Writes the metrics of ``step`` of the stage ``prefix`` to every sink."""
        named = with_verl_names(values) if self._verl_names else values
        self._vital.log(step, named, prefix)
        for sink in self._others:
            self._try(sink, partial(sink.log, step, named, prefix))

    def close(self) -> None:
        """Closes every sink."""
        self._vital.close()
        for sink in self._others:
            self._try(sink, sink.close)

    def _try(self, sink: Sink, work: Callable[[], None]) -> None:
        try:
            with wall(lambda error: MachineError(described(error)), passes=()):
                work()
        except MachineError as error:
            if sink not in self._failing:
                self._failing.add(sink)
                text = (
                    f"{type(sink).__name__} failed, and is tried again at each step: {error}; "
                    "metrics.jsonl has every number"
                )
                logger.warning("%s", text, extra={"event": "sink_failed"})
                self._told(text)
        else:
            self._failing.discard(sink)
