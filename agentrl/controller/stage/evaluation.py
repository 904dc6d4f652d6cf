"""Stage evaluation: when a stage's model is evaluated, and what a resume makes up for."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from agentrl.config import StageConfig
from agentrl.controller.checkpoints.checkpointing import Checkpointing
from agentrl.controller.evaluator import Evaluator
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.state import TrainState
from agentrl.errors import RunInterruptedError


@dataclass(eq=False)
class StageEvaluation:
    """Evaluates before the first step, every so many steps, and after the last.

    Args:
        stage: whole; ``eval`` says when.
        evaluator: evaluates the model; None where nothing is held out.
        recorder: of the results.
        checkpointing: knows of an evaluation that did not end.
    """

    stage: StageConfig
    evaluator: Evaluator | None
    recorder: Recorder
    checkpointing: Checkpointing

    def at_start(self, state: TrainState, *, resumed: bool) -> None:
        """Evaluates the weights that the stage starts from, or makes up for an evaluation that was
        interrupted."""
        if when := self.checkpointing.evaluating:
            done = [name for name, own in self.recorder.results.items() if when in own]
            self._evaluate(when, state, done)
        elif self.stage.eval.before and not resumed:
            self._evaluate("before", state)

    def if_due(self, state: TrainState) -> None:
        """Evaluates the model every so many steps, and after the last."""
        every = self.stage.eval.every
        if state.step == self.stage.last_step:
            self._evaluate("after", state)
        elif every is not None and state.step % every == 0:
            self._evaluate(f"step={state.step:06d}", state)

    def _evaluate(self, when: str, state: TrainState, done: Collection[str] = ()) -> None:
        """Evaluates the model; where the run is asked to end meanwhile, a resume makes up for the
        rest."""
        if self.evaluator is None:
            return
        self.recorder.evaluating(when, state.step)
        self.checkpointing.evaluating = when
        # The loop's next look ends the run, and its checkpoint names this evaluation.
        with self.recorder.timer.phase("eval"), suppress(RunInterruptedError):
            for result in self.evaluator.evaluate(when, done=done):
                self.recorder.record_evaluation(result, state)
            self.checkpointing.evaluating = ""
            self.checkpointing.settle(wait=True)
            if not done:
                self.checkpointing.checkpoints.check_metric(self.recorder.last_evaluated[1])
