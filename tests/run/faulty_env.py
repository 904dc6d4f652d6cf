"""An environment whose step raises for some tasks, as a newcomer's might."""

from __future__ import annotations

import os
from pathlib import Path

from agentrl.envs import Env
from agentrl.types import Action, Observation, StepResult, Task


class Faulty(Env):
    """Ends after one turn, rewarded by its digits. A step raises for every task, or for each one in
    FAULTY_EVERY, as long as the file that FAULTY names exists."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    def step(self, action: Action) -> StepResult:
        every = int(os.environ.get("FAULTY_EVERY", "1"))
        if Path(os.environ["FAULTY"]).exists() and self._number % every == 0:
            self._read_map()
        digits = sum(letter.isdigit() for letter in action.text)
        reward = digits / (1 + len(action.text))
        return StepResult(Observation(()), reward=reward, terminated=True)

    @property
    def _number(self) -> int:
        return int(self.task.id.rpartition("-")[2])

    def _read_map(self) -> None:
        raise KeyError("the map")
