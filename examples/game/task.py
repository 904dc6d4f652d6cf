"""Game task: maps of Gymnasium's FrozenLake without slipping, a map a task.

A game of your own needs the same: tasks whose ``info["env_args"]`` make it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from agentrl.types import Task

SIZE = 4
MOVES = {"left": -1, "down": SIZE, "right": 1, "up": -SIZE}


def tasks(seed: int, split: str = "train", num_tasks: int = 2000) -> Iterator[Task]:
    """The data set: ``split`` is ``train`` or ``held_out``."""
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        board = drawn(rng, split)
        yield Task(
            f"{split}-{index}",
            ({"role": "system", "content": spoken(board)},),
            info={"env_args": {"desc": board}, "solution": way(board, 0)},
        )


def drawn(rng: random.Random, split: str) -> list[str]:
    """A map of the split, with a way from start to goal."""
    while True:
        board: list[str] = generate_random_map(SIZE, p=0.75, seed=rng.randrange(2**31))
        if held_out(board) == (split != "train"):
            return board


def held_out(board: list[str]) -> bool:
    """Whether a map belongs to the held-out ones: three tenths of all, always the same."""
    return hashlib.sha256("".join(board).encode()).digest()[0] < 77


def spoken(board: list[str]) -> str:
    """The map as the model reads it: start, frozen, hole, goal, row by row."""
    return "\n".join(" ".join(row) for row in board)


def way(board: list[str], start: int) -> list[str]:
    """The shortest way to the goal in moves; ``start`` is no hole."""
    cells = "".join(board)
    ways: dict[int, list[str]] = {start: []}
    for place in (waiting := [start]):
        for move, by in MOVES.items():
            over = place + by
            aside = move in ("left", "right") and over // SIZE != place // SIZE
            if (
                over in range(len(cells))
                and not aside
                and over not in ways
                and cells[over] != "H"
            ):
                ways[over] = [*ways[place], move]
                waiting.append(over)
    return ways[cells.index("G")]
