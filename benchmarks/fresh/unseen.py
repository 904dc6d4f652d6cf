"""Unseen tasks: held-out tasks of an example that no setting was chosen on.

They come from a seed of their own, each prompt occurs once, and none was among the held-out tasks
looked at while the example's settings were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agentrl.types import Task, load_object

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SEED = 1_000_003
# The held-out tasks examined earlier: the seeds that settings were chosen on, and as many as the
# configurations ask for.
EARLIER_SEEDS = (7, 8, 9)
EARLIER_TASKS = 200


def unseen(example: str, num_tasks: int) -> Iterator[Task]:
    """The data set of an example: always the same."""
    tasks = load_object("task.py:tasks", EXAMPLES / example)
    taken = {
        prompt(task)
        for seed in EARLIER_SEEDS
        for task in tasks(seed, "held_out", num_tasks=EARLIER_TASKS)
    }
    index = 0
    for task in tasks(SEED, "held_out", num_tasks=100 * num_tasks):
        if prompt(task) in taken:
            continue
        taken.add(prompt(task))
        yield replace(task, id=f"fresh-{index}")
        index += 1
        if index == num_tasks:
            return


def prompt(task: Task) -> str:
    """What the task's first message says."""
    return str(task.messages[0]["content"])
