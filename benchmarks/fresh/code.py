"""Fresh code problems: problems of the code example that no setting was chosen on.

They are held out of training as all held-out problems are, come from a generator of their own seed,
and have no pair of operands in common with the held-out problems that were looked at while the
example's settings were chosen.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import combinations, islice
from pathlib import Path

from agentrl.types import Task, load_object

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "code"
problems = load_object("task.py:problems", EXAMPLE)

# The held-out problems examined earlier: of every seed trained with, the most that a run asked for.
EARLIER_SEEDS = (0, 1, 2)
EARLIER_TASKS = 1000


def operand_pairs(question: str) -> set[tuple[int, int]]:
    """Every two operands of a problem, the smaller first."""
    operands = [int(number) for number in re.findall(r"\d+", question)]
    return {(min(pair), max(pair)) for pair in combinations(operands, 2)}


def earlier_pairs() -> set[tuple[int, int]]:
    """The operand pairs of the held-out problems examined earlier."""
    pairs: set[tuple[int, int]] = set()
    for seed in EARLIER_SEEDS:
        for problem in islice(
            problems(random.Random(f"{seed}-held_out"), "held_out"), EARLIER_TASKS
        ):
            pairs |= operand_pairs(problem.question)
    return pairs


def tasks(num_tasks: int = 1000) -> Iterator[Task]:
    """The data set: always the same, each pair of operands in one problem only."""
    taken = earlier_pairs()
    index = 0
    for problem in problems(random.Random("fresh"), "held_out"):
        pairs = operand_pairs(problem.question)
        if pairs & taken:
            continue
        taken |= pairs
        message = {"role": "user", "content": problem.question}
        yield Task(f"fresh-{index}", (message,), answer=problem.answer, data_source="code")  # type: ignore[arg-type]
        index += 1
        if index == num_tasks:
            return
