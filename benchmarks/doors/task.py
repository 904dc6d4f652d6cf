"""Doors: a walk through eight rooms; the door taken in one of them alone decides the reward."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentrl.envs import Env
from agentrl.types import Action, Message, Observation, StepResult, Task

NUM_ROOMS = 8
DOORS = {"red": "north", "blue": "east", "green": "south", "gold": "west"}
"""The door that a sign points to."""


class Doors(Env):
    """Walk through eight rooms, a door a turn. Each room has a sign, and one of them holds a chest.

    There the door that the sign points to gives the key, and reward 1. The doors taken elsewhere
    change nothing.

    Args:
        task: ``info`` has the ``signs`` of the rooms, and the number of the one with the
            ``chest``.
    """

    def __init__(self, task: Task) -> None:
        self.signs: list[str] = list(task.info["signs"])
        self.chest = int(task.info["chest"])
        self.room = 0
        self.has_key = False

    def reset(self, *, seed: int) -> Observation:
        """Nothing here is random: the task says all."""
        return self.view()

    def step(self, action: Action) -> StepResult:
        """One door; the walk goes on whatever was said."""
        reward = 0.0
        if self.room == self.chest:
            self.has_key = action.text.strip() == DOORS[self.signs[self.room]]
            reward = float(self.has_key)
        self.room += 1
        if self.room == NUM_ROOMS:
            return StepResult(Observation(), reward, terminated=True)
        return StepResult(self.view(), reward)

    def view(self) -> Observation:
        """The room, its sign, and the chest or what became of it; that is the whole state."""
        seen = f"{self.room} {self.signs[self.room]}"
        if self.room == self.chest:
            seen += " chest"
        elif self.room > self.chest:
            seen += " key" if self.has_key else " nothing"
        return Observation(({"role": "user", "content": seen},), info={"state": seen})


def tasks(seed: int, split: str = "train", num_tasks: int = 2000) -> Iterator[Task]:
    """The data set: signs and the chest's place at random."""
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        signs = rng.choices(list(DOORS), k=NUM_ROOMS)
        yield Task(
            f"{split}-{index}", info={"signs": signs, "chest": rng.randrange(NUM_ROOMS)}
        )


def demonstrations(seed: int, noise: float = 0.9) -> Iterator[dict[str, Any]]:
    """Endless walks; a share ``noise`` of the doors, the chest's too, is any of the four."""
    rng = random.Random(seed)
    walks = list(tasks(seed))
    while True:
        env = Doors(rng.choice(walks))
        messages = list(env.reset(seed=0).messages)
        terminated = False
        while not terminated:
            door = DOORS[env.signs[env.room]]
            if rng.random() < noise:
                door = rng.choice(list(DOORS.values()))
            said: Message = {"role": "assistant", "content": door}
            result = env.step(Action(door, said))
            messages += [said, *result.observation.messages]
            terminated = result.terminated
        yield {"messages": messages}


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the doors' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the tasks do without
    )

    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=300,
        vocab_size=320,
        hidden=64,
        layers=2,
        ff=192,
    )
