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
    """When the steps of a run, their phases and what ranks did began and ended. Used under its
    run's lock.

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
        """Step, codes of name and process, begin and end; nothing where they are none."""
        known = isinstance(phase, list) and len(phase) in (3, 4)
        name, start, end, process = [*phase, ""][:4] if known else ("", 0, 0, "")
        if not 0 < seconds(start) <= seconds(end):
            return ()
        return step, self._code(str(name)), self._code(str(process)), start, end

    def _code(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def spans(self, stage: str | None, first: float, last: float) -> dict[str, list[Span]]:
        """Those of some steps by the process, empty for the loop, which has the steps themselves;
        of two that last at one time the one that began later has the moment.
        """
        names = list(self._names)
        own = np.array(self._stages.get(stage or "", ())).reshape(-1, 5)
        found: dict[str, list[Span]] = {"": []}
        for step, name, process, start, end in own[
            (own[:, 0] >= first) & (own[:, 0] <= last)
        ].tolist():
            span = Span(names[int(name)], start, end, int(step), rank=start)
            found.setdefault(names[int(process)], []).append(span)
        return found
