"""An environment of many short turns, whose state is in its attributes."""

from __future__ import annotations

import time

from agentrl.envs import Env
from agentrl.types import Action, Message, Observation, StepResult, Task


class Long(Env):
    """Asks ten times, slowly, so that episodes outlast steps; each answer earns by its digits."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.num_turns = 0

    def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    def step(self, action: Action) -> StepResult:
        self.num_turns += 1
        time.sleep(0.05)
        asked: Message = {"role": "user", "content": f"{self.num_turns}?"}
        reward = sum(letter.isdigit() for letter in action.text) / (1 + len(action.text))
        return StepResult(
            Observation((asked,)), reward=reward, terminated=self.num_turns == 10
        )
