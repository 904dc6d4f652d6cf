"""Phase table: ``phases.jsonl`` by stage, in columns, grown by the lines appended to it."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.viewer.analysis.spans import Span, seconds
from agentrl.viewer.runs.metrics_table import AppendedLines

STEP = "step"
"""The span of the step itself."""


class PhaseTable:
    """When the steps of a run and their phases began and ended. Used under its run's lock.

    Args:
        path: ``RunDirectory.phases_path``.
    """

    def __init__(self, path: Path) -> None:
        self._lines = AppendedLines(path)
        self._names: dict[str, int] = {}
        self._stages: dict[str, array[float]] = {}

    @property
    def damage(self) -> list[str]:
        """Lines that were passed over."""
        return self._lines.damage

    def refresh(self) -> None:
        """Takes what was appended.

        Raises:
            StoreError: the file cannot be read.
        """
        restarted, records = self._lines.take()
        if restarted:
            self._stages.clear()
        for record in records:
            step, phases = record.get("step"), record.get("phases")
            if isinstance(step, int) and abs(step) < 2**53 and isinstance(phases, list):
                own = self._stages.setdefault(str(record.get("stage")), array("d"))
                for phase in phases:
                    own.extend(self._row(step, phase))

    def _row(self, step: int, phase: Any) -> tuple[float, ...]:
        """Step, code of the name, begin and end; nothing where they are none."""
        name, start, end = phase if isinstance(phase, list) and len(phase) == 3 else ("", 0, 0)
        if not 0 < seconds(start) <= seconds(end):
            return ()
        return step, self._names.setdefault(str(name), len(self._names)), start, end

    def spans(self, stage: str | None, first: float, last: float) -> list[Span]:
        """Those of some steps, the steps themselves among them; of two that last at one time the
        one that began later has the moment.
        """
        names = list(self._names)
        own = np.array(self._stages.get(stage or "", ())).reshape(-1, 4)
        return [
            Span(names[int(code)], start, end, int(step), rank=start)
            for step, code, start, end in own[(own[:, 0] >= first) & (own[:, 0] <= last)].tolist()
        ]
