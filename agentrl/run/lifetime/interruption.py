"""Interruption: what a run says and records when it was asked to end, and how it goes on."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import StageConfig
from agentrl.controller.checkpoints import whole_checkpoints
from agentrl.controller.stop_request import StopRequest
from agentrl.errors import (
    CHECKPOINT,
    IN_LOG,
    RunInterruptedError,
    StoreError,
    has_traceback,
)
from agentrl.metrics import StepDisplay
from agentrl.run.lifetime.record import utc_time
from agentrl.store import EventLog, RunDirectory, write_json

logger = logging.getLogger(__name__)

DRIVER_LOG = "driver.jsonl"
_ENDED = {"event": "run_failed"}


@dataclass(slots=True)
class Interruption:
    """Of one run.

    Args:
        stop: what signals ask.
        directory: the run's.
        stages: those that run, in order.
        display: what a person sees.
        events: what a person should know later.
        told: what is raised instead of the error that ended the run, once that was said.
    """

    stop: StopRequest
    directory: RunDirectory
    stages: Sequence[StageConfig]
    display: StepDisplay
    events: EventLog
    told: BaseException | None = None

    def tell(self, error: BaseException) -> BaseException | None:
        """Says how the run goes on where it was asked to end, and records it in ``run.json``; once.

        Args:
            error: what ended it.

        Returns:
            What is raised instead of ``error``; None where nobody asked it to end.
        """
        by = self.stop.by or ("Ctrl-C" if isinstance(error, KeyboardInterrupt) else "")
        if self.told is not None or not by:
            return self.told
        text = f"interrupted by {by}"
        if not isinstance(error, RunInterruptedError | KeyboardInterrupt):
            first = str(error).partition("\n")[0]
            text += (
                "; what runs ended before a checkpoint could be made "
                f"({type(error).__name__}: {first})"
            )
        checkpoint = self._newest_checkpoint()
        text += f"; {self._how_on(checkpoint)}"
        kind = (
            KeyboardInterrupt
            if isinstance(error, KeyboardInterrupt)
            else RunInterruptedError
        )
        self.told = kind(text)
        self.display.message(text)
        entry = {
            "time": utc_time(),
            "by": by,
            "checkpoint": checkpoint and str(checkpoint.relative_to(self.directory.root)),
        }
        try:
            self.events.log("interrupted", text, boundary="run", level="warning")
            record = self.directory.read_record()
            write_json(self.directory.record_path, {**record, "interrupted": entry})
        except StoreError as second:  # the signal may have come because the disk went away
            self.told.add_note(f"and recording it failed: {second}")
        return self.told

    def tell_failure(self, error: BaseException) -> None:
        """Keeps in the log what ended a run by itself; where that is, and how the run goes on if
        there is anything to go on from, are notes of the error: who shows it shows them last."""
        log = self.directory.log_folder.resolve() / DRIVER_LOG
        if not isinstance(error, StoreError):  # the disk may take no more
            rank = {"traceback_of_rank": getattr(error, "traceback_text", "")}
            logger.error(
                "the run ended by an error: %s", error, exc_info=error, extra=_ENDED | rank
            )
            if has_traceback(error):
                error.add_note(f"{IN_LOG}{log}")
        if (checkpoint := self._newest_checkpoint()) is not None:
            error.add_note(self._how_on(checkpoint))

    def _how_on(self, checkpoint: Path | None) -> str:
        """Which checkpoint stands, and the command that goes on from there."""
        stands = (
            f"{CHECKPOINT}{checkpoint} stands" if checkpoint else "it has no checkpoint yet"
        )
        return f"{stands}; go on with: `{resume_command(self.directory)}`"

    def _newest_checkpoint(self) -> Path | None:
        for stage in reversed(self.stages):
            if found := whole_checkpoints(self.directory.checkpoints_folder / stage.name):
                return found[-1]
        return None


def resume_command(directory: RunDirectory, words: Sequence[str] | None = None) -> str:
    """The command line by which the run goes on; from Python, what to call.

    Args:
        directory: the run's.
        words: the command line that started it; by default this process's.
    """
    words = (sys.argv if words is None else words)[1:]
    if not words or words[0] != "train":
        return f"Trainer.train(resume=True) with run.dir={directory.root}"
    words = ["agentrl", *(word for word in words if word != "--resume")]
    if not any(word.startswith("run.dir=") for word in words):
        words.append(f"run.dir={directory.root}")
    return shlex.join([*words, "--resume"])
