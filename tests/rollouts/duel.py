"""A game of two: each agent is told what the other one said."""

from __future__ import annotations

from agentrl.envs import Env
from agentrl.types import Action, Observation, StepResult, Task, ToolSpec

PASS = ToolSpec("pass", "Give up.", {"type": "object", "properties": {}})


class Duel(Env):
    """White begins; after ``rounds`` of both the longer last word wins.

    Args:
        task: the problem.
        rounds: turns of each.
        first: who begins.
    """

    def __init__(self, task: Task, rounds: int = 2, first: str = "white") -> None:
        self.rounds = rounds
        self.last = {"white": "", "black": ""}
        self.num_turns = 0
        self.first = first
        self.turn = first

    def reset(self, *, seed: int) -> Observation:
        return self._opening(self.first)

    def step(self, action: Action) -> StepResult:
        self.last[self.turn] = action.text
        self.num_turns += 1
        other = "black" if self.turn == "white" else "white"
        said = action.text
        self.turn = other
        if self.num_turns == 2 * self.rounds:
            lead = float(len(self.last["white"]) - len(self.last["black"]))
            return StepResult(
                Observation(), {"white": lead, "black": -lead}, terminated=True
            )
        if self.num_turns == 1:
            return StepResult(self._opening(other, said))
        return StepResult(Observation(({"role": "user", "content": said},), agent=other))

    def _opening(self, agent: str, *said: str) -> Observation:
        words = (f"You are {agent}.", *said)
        messages = tuple({"role": "user", "content": text} for text in words)
        return Observation(
            messages,  # type: ignore[arg-type]
            agent=agent,
            tools=(PASS,) if agent == "black" else (),
        )
