"""Save result: what became of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import StoreError


@dataclass(frozen=True, slots=True)
class SaveResult:
    """What became of a checkpoint, equal on every rank.

    Args:
        seconds: from the copy to the last file.
        error: why there is none; None where it is whole.
    """

    seconds: float
    error: StoreError | None = None
