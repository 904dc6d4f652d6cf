"""Checkpointing: writes a stage's checkpoints, beside the steps that follow where it may.

At most one checkpoint is being written. The one before stays until it exists.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from agentrl.controller.checkpoints.checkpoint_copies import CheckpointCopies
from agentrl.controller.checkpoints.stage_checkpoints import Checkpoints, Manifest
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.schedule import Schedule
from agentrl.controller.state import TrainState
from agentrl.errors import StoreError, TrainingError
from agentrl.training import LearningRole
from agentrl.training.fsdp.checkpoint_files import is_written

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Pending:
    """A checkpoint that is being written."""

    folder: Path
    manifest: Manifest
    start: float
    waiting: list[RoleHandle]
    """Learners that have not told yet what became of it."""
    error: StoreError | None = None


@dataclass(eq=False)
class Checkpointing:
    """Keeps a stage's states.

    Args:
        stage: its name.
        checkpoints: their folders.
        learners: whose weights are kept.
        schedule: whose groups wait or run.
        recorder: what a manifest says of evaluations and metrics.
        copies: of the checkpoints, elsewhere; None makes none.
        evaluating: the evaluation that began and did not end; a resume makes up for it.
    """

    stage: str
    checkpoints: Checkpoints
    learners: Sequence[RoleHandle]
    schedule: Schedule
    recorder: Recorder
    _: KW_ONLY
    copies: CheckpointCopies | None = None
    evaluating: str = ""

    def __post_init__(self) -> None:
        self._pending: _Pending | None = None

    def keep(
        self, state: TrainState, again: Collection[int] = (), *, beside: bool = False
    ) -> None:
        """Keeps a checkpoint of a state whose weights the learner has; draws of ``again`` are
        played once more.

        Args:
            state: of the loop.
            again: draws that a resume plays again though they have ended.
            beside: it is written beside what follows, which goes on where that fails.

        Raises:
            StoreError: it cannot be written, and is not written beside.
        """
        with self.recorder.timer.phase("checkpoint"):
            self.settle(wait=True)
            start = time.monotonic()
            snapshot = self.schedule.snapshot(again)
            folder = self.checkpoints.begin(state.step)
            try:
                for learner in self.learners:
                    learner.call(LearningRole.begin_save, folder / learner.name)
                # A resume does not play again what had ended, so it must be on disk before the
                # checkpoint exists.
                self.recorder.sync()
                self.recorder.record_unsaved(snapshot.running)
                evaluated_step, evaluated = self.recorder.last_evaluated
                manifest = Manifest(
                    stage=self.stage,
                    state=state,
                    rollouts=snapshot,
                    # The manifest is written later, when the loop may have added to them.
                    results=deepcopy(self.recorder.results),
                    evaluated=evaluated if evaluated_step == state.step else {},
                    evaluating=self.evaluating,
                    uncounted=self.recorder.uncounted(),
                )
            except BaseException:
                self.checkpoints.abandon(folder)
                raise
            self._pending = _Pending(folder, manifest, start, list(self.learners))
            self.settle(wait=not beside, required=not beside)

    def settle(self, *, wait: bool, required: bool = False) -> None:
        """Makes the checkpoint that is being written exist once it is written. Where it could not
        be, the one before stays, and that is told.

        Args:
            wait: until it is written.
            required: raise in place of telling.

        Raises:
            StoreError: it is required and cannot be written.
        """
        self.tell_copy(wait=False)
        pending = self._pending
        if pending is None:
            return
        while pending.waiting:
            result = pending.waiting[0].call(LearningRole.save_result, wait)
            if result is None:
                return
            pending.waiting.pop(0)
            pending.error = pending.error or result.error
        # It exists or is given up from here on: an error must not bring it back at the next call.
        self._pending = None
        # the copy of the one before, which may be deleted now
        self.tell_copy(wait=True)
        try:
            if pending.error is not None:
                raise pending.error
            self.checkpoints.commit(pending.folder, pending.manifest)
        except StoreError as error:
            self.checkpoints.abandon(pending.folder)
            if required:
                raise
            self.recorder.record_failed_checkpoint(
                f"there is no checkpoint {pending.folder}", error
            )
            return
        except BaseException:
            self.checkpoints.abandon(pending.folder)
            raise
        fields = {
            "path": str(pending.folder),
            "seconds": time.monotonic() - pending.start,
            "stage": self.stage,
            "step": pending.manifest.state.step,
        }
        logger.info(
            "checkpoint %(path)s written in %(seconds).2f s",
            fields,
            extra={"event": "checkpoint_written", **fields},
        )
        self._begin_copy(pending.folder)

    def tell_copy(self, *, wait: bool) -> None:
        """Tells of a copy that could not be made; the run goes on.

        Args:
            wait: until the one that is being made has come to its end.
        """
        if (
            self.copies is not None
            and (failed := self.copies.failure(wait=wait)) is not None
        ):
            self.recorder.record_failed_checkpoint(*failed)

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and for its copy, where the stage ends by
        an error. One whose ranks do not answer any more exists where all their files do."""
        pending = self._pending
        try:
            self.settle(wait=True)
        except TrainingError:
            if pending is None or not all(
                is_written(pending.folder / learner.name) for learner in self.learners
            ):
                raise
            self._pending = None
            self.tell_copy(wait=True)
            self.checkpoints.commit(pending.folder, pending.manifest)
            self._begin_copy(pending.folder)
        finally:
            self.tell_copy(wait=True)

    def _begin_copy(self, folder: Path) -> None:
        if self.copies is not None:
            self.copies.begin(folder)
