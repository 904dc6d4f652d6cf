"""Interruption: what a run says and records when it was asked to end, and how it goes on."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.config import StageConfig
from agentrl.controller.stop_request import StopRequest
from agentrl.errors import RunInterruptedError, StoreError
from agentrl.metrics import StepDisplay
from agentrl.store import EventLog, RunDirectory, write_json


class Interruption:
    """Of one run.

    Args:
        stop: what signals ask.
        directory: the run's.
        stages: those that run, in order.
        display: what a person sees.
        events: what a person should know later.
    """

    def __init__(
        self,
        stop: StopRequest,
        directory: RunDirectory,
        stages: Sequence[StageConfig],
        display: StepDisplay,
        events: EventLog,
    ) -> None:
        self._stop = stop
        self._directory = directory
        self._stages = stages
        self._display = display
        self._events = events
        self._told: BaseException | None = None

    def tell(self, error: BaseException) -> BaseException | None:
        """Says how the run goes on where it was asked to end, and records it in ``run.json``; once.

        Args:
            error: what ended it.

        Returns:
            What is raised instead of ``error``; None where nobody asked it to end.
        """
        by = self._stop.by or ("Ctrl-C" if isinstance(error, KeyboardInterrupt) else "")
        if self._told is not None or not by:
            return self._told
        text = f"interrupted by {by}"
        if not isinstance(error, RunInterruptedError | KeyboardInterrupt):
            first = str(error).partition("\n")[0]
            text += f"; what runs ended before a checkpoint could be made ({type(error).__name__}: {first})"  # noqa: E501
        checkpoint = self._newest_checkpoint()
        text += f"; {self.how_on(checkpoint)}"
        self._told = (
            KeyboardInterrupt(text)
            if isinstance(error, KeyboardInterrupt)
            else RunInterruptedError(text)
        )
        self._display.message(text)
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "by": by,
            "checkpoint": None
            if checkpoint is None
            else str(checkpoint.relative_to(self._directory.root)),
        }
        try:
            self._events.log("interrupted", text, boundary="run", level="warning")
            record = self._directory.read_record()
            write_json(self._directory.record_path, {**record, "interrupted": entry})
        except StoreError as second:  # the signal may have come because the disk went away
            self._told.add_note(f"and recording it failed: {second}")
        return self._told

    def tell_failure(self) -> None:
        """Says how a run goes on that failed by itself, where there is anything to go on from."""
        if (checkpoint := self._newest_checkpoint()) is not None:
            self._display.message(self.how_on(checkpoint))

    def how_on(self, checkpoint: Path | None) -> str:
        """Which checkpoint stands, and the command that goes on from there."""
        stands = f"the checkpoint {checkpoint} stands" if checkpoint else "it has no checkpoint yet"
        return f"{stands}; go on with: {resume_command(self._directory)}"

    def _newest_checkpoint(self) -> Path | None:
        for stage in reversed(self._stages):
            found = sorted(
                (self._directory.checkpoints_folder / stage.name).glob("step=*/manifest.json")
            )
            if found:
                return found[-1].parent
        return None


def resume_command(directory: RunDirectory) -> str:
    """The command line by which the run goes on; from Python, what to call."""
    words = sys.argv[1:]
    if not words or words[0] != "train":
        return f"Trainer.train(resume=True) with run.dir={directory.root}"
    words = ["agentrl", *(word for word in words if word != "--resume")]
    if not any(word.startswith("run.dir=") for word in words):
        words.append(f"run.dir={directory.root}")
    return shlex.join([*words, "--resume"])
