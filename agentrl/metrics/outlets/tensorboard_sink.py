"""TensorBoard sink: numbers as event files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from agentrl.metrics.outlets.tracked_run import TrackedRun, TrackerSink


class TensorBoardSink(TrackerSink):
    """Writes to ``tensorboard`` in the run directory.

    Args:
        spec: that it is on.
        run: whose numbers.
    """

    def __init__(self, spec: bool, run: TrackedRun) -> None:
        super().__init__(run)
        self._open = partial(EventFileWriter, str(run.root / "tensorboard"))
        self._writer: Any = None

    def keep(self, step: int, values: Mapping[str, float]) -> None:
        numbers = [
            Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
        ]
        self._writer = self._writer or self._open()
        try:
            self._writer.add_event(
                Event(wall_time=time.time(), step=step, summary=Summary(value=numbers))
            )
        except BaseException:
            # one that failed takes nothing more: the next step has another
            self._writer = None
            raise

    def close(self, *, failed: bool = False) -> None:
        if self._writer is not None:
            self._writer.close()
