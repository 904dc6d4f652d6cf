"""Rollbacks: which annotations a resumed run has taken back.

A run that goes back to a checkpoint makes some steps again. Each resume is a line of
``resumes.jsonl``: the step that each stage went back to, and the last one that trackers were told.
Each annotation bears the number of resumes before it, so that no clock decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from agentrl.errors import StoreError
from agentrl.store.jsonl import JsonlWriter, read_jsonl
from agentrl.store.run_directory import RunDirectory


def record_resume(
    run: RunDirectory,
    steps: Mapping[str, int],
    told: Mapping[str, tuple[int, Collection[str]]] = MappingProxyType({}),
) -> None:
    """Writes down that a run goes back, before anything new is written.

    Args:
        run: the run.
        steps: of each stage the last step that stands; -1 where none does.
        told: of each stage the last step that trackers were told, and its numbers' names: the
            metrics that say so are taken out next.

    Raises:
        StoreError: the file cannot be written.
    """
    file = JsonlWriter(run.resumes_path)
    try:
        names = {stage: [step, sorted(names)] for stage, (step, names) in told.items()}
        file.append({"steps": dict(steps), "told": names})
        file.sync()
    finally:
        file.close()


class Rollbacks:
    """The resumes of a run so far.

    Args:
        run: the run; None for one that was never resumed.

    Raises:
        StoreError: the file cannot be read.
    """

    def __init__(self, run: RunDirectory | None = None) -> None:
        lines = [] if run is None else read_jsonl(run.resumes_path)
        try:
            self.steps: list[dict[str, int]] = [dict(line["steps"]) for line in lines]
            """Of each resume the last step of each stage that stands."""
        except (KeyError, TypeError, ValueError) as error:
            assert run is not None
            raise StoreError(
                f"each line of {run.resumes_path} must have the steps of its stages: {error!r}"
            ) from error

    @classmethod
    def readable(
        cls, run: RunDirectory, on_damage: Callable[[StoreError], None]
    ) -> Rollbacks:
        """Those of a run; none where they cannot be read, which ``on_damage`` is told."""
        try:
            return cls(run)
        except StoreError as error:
            on_damage(error)
            return cls()

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.steps)

    def took_back(self, resumes: int, stage: str, step: int) -> bool:
        """Whether a later resume went back behind a step.

        Args:
            resumes: before the annotation was written.
            stage: of the step.
            step: that the annotation is of.
        """
        return any(step > steps.get(stage, step) for steps in self.steps[resumes:])
