"""Maze: a custom environment of text, whose policy says a direction a turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentrl.envs import Env
from agentrl.types import Action, Message, Observation, StepResult, Task

SIZE = 4
MOVES = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
Place = tuple[int, int]


class Maze(Env):
    """Find the exit of a grid with walls.

    Args:
        task: ``info`` has the ``start``, the ``exit`` and the ``walls``, pairs of neighbours.
        max_moves: after which the episode is cut.
    """

    def __init__(self, task: Task, max_moves: int = 10) -> None:
        self.task = task
        self.max_moves = max_moves
        self.place = as_place(task.info["start"])
        self.exit = as_place(task.info["exit"])
        self.walls = {frozenset(map(as_place, wall)) for wall in task.info["walls"]}
        self.num_moves = 0

    def reset(self, *, seed: int) -> Observation:
        """Nothing here is random: the task says all."""
        return Observation(
            ({"role": "user", "content": f"Go to {spoken(self.exit)}. {self.view()}"},)
        )

    def step(self, action: Action) -> StepResult:
        """One move; a wall or a word that is no direction is told, and costs a move."""
        self.num_moves += 1
        said = action.text.strip().lower()
        if said in self.open_ways():
            self.place = after(self.place, said)
            told = ""
        else:
            told = "A wall. " if said in MOVES else "Say north, east, south or west. "
        if self.place == self.exit:
            return StepResult(Observation(), reward=1.0, terminated=True)
        last = self.num_moves == self.max_moves
        answer: Message = {"role": "user", "content": told + self.view()}
        return StepResult(
            Observation((answer,)),
            truncated=last,
            info={"reason": "max_moves"} if last else {},
        )

    def solution(self) -> list[str]:
        """For `agentrl check`: the shortest way out must get full marks."""
        return way_out(self.place, self.exit, self.walls)

    def open_ways(self) -> list[str]:
        """The directions without a wall."""
        return [
            way for way in MOVES if is_open(self.place, after(self.place, way), self.walls)
        ]

    def view(self) -> str:
        """What the policy is told of its place."""
        return f"At {spoken(self.place)}: {' '.join(self.open_ways())}"

    def snapshot(self) -> dict[str, Any]:
        """The grid for people to look at: ``@`` the policy, ``X`` the exit, ``#`` walls between."""
        lines = range(2 * SIZE - 1)
        return {
            "form": "grid",
            "cells": ["".join(self._cell(x, y) for x in lines) for y in lines],
        }

    def _cell(self, x: int, y: int) -> str:
        """A place where both numbers are even, else what lies between two."""
        near, far = (x // 2, y // 2), ((x + 1) // 2, (y + 1) // 2)
        if near == far:
            return "@" if near == self.place else "X" if near == self.exit else "."
        return (
            "+" if x % 2 and y % 2 else "#" if frozenset((near, far)) in self.walls else " "
        )


def tasks(seed: int, split: str = "train", num_tasks: int = 400) -> Iterator[Task]:
    """The data set: mazes whose exit can be reached."""
    rng = random.Random(f"{seed}-{split}")
    places = [(x, y) for x in range(SIZE) for y in range(SIZE)]
    borders = [
        (place, other) for place in places for other in neighbours(place) if place < other
    ]
    for index in range(num_tasks):
        while True:
            start, goal = rng.sample(places, 2)
            walls = rng.sample(borders, 6)
            if len(way_out(start, goal, {frozenset(wall) for wall in walls})) in range(
                2, 7
            ):
                break
        yield Task(f"{split}-{index}", info={"start": start, "exit": goal, "walls": walls})


def demonstrations(seed: int, noise: float = 0.5) -> Iterator[dict[str, Any]]:
    """Endless walks through training mazes; at each step a share ``noise`` of them goes
    anywhere.
    """
    rng = random.Random(seed)
    mazes = list(tasks(seed))
    while True:
        env = Maze(rng.choice(mazes))
        messages = list(env.reset(seed=0).messages)
        ended = False
        while not ended:
            right = way_out(env.place, env.exit, env.walls)[0]
            said: Message = {
                "role": "assistant",
                "content": rng.choice(list(MOVES)) if rng.random() < noise else right,
            }
            result = env.step(Action(said["content"], said))
            messages += [said, *result.observation.messages]
            ended = result.terminated or result.truncated
        yield {"messages": messages}


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the maze's words."""
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
        ff=192,
    )


def way_out(start: Place, goal: Place, walls: set[frozenset[Place]]) -> list[str]:
    """The shortest way in directions; empty where there is none."""
    ways: dict[Place, list[str]] = {start: []}
    waiting = [start]
    for place in waiting:
        for way in MOVES:
            other = after(place, way)
            if other not in ways and is_open(place, other, walls):
                ways[other] = [*ways[place], way]
                waiting.append(other)
    return ways.get(goal, [])


def neighbours(place: Place) -> list[Place]:
    return [other for way in MOVES if is_open(place, other := after(place, way), set())]


def is_open(place: Place, other: Place, walls: set[frozenset[Place]]) -> bool:
    return (
        all(0 <= part < SIZE for part in other) and frozenset((place, other)) not in walls
    )


def after(place: Place, way: str) -> Place:
    return place[0] + MOVES[way][0], place[1] + MOVES[way][1]


def as_place(value: Any) -> Place:
    return int(value[0]), int(value[1])


def spoken(place: Place) -> str:
    return f"{place[0]} {place[1]}"
