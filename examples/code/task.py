"""Code task: arithmetic that the model solves by writing Python and reading its output.

A task of your own needs the same three things: tasks, tools, and a reward.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from agentrl.envs import EpisodeView, Score
from agentrl.tools import PythonTool
from agentrl.types import Task

python = PythonTool(deadline_s=5.0)

# How a problem is put, and the Python that answers it.
TEMPLATES = (
    ("What is {a} times {b}?", "{a}*{b}"),
    ("Multiply {a} by {b} and add {c}.", "{a}*{b}+{c}"),
    ("Add {a} and {b}, then multiply by {c}.", "({a}+{b})*{c}"),
    ("Take {a} from {b} times {c}.", "{b}*{c}-{a}"),
    (
        "{a} boxes hold {b} pens each and {c} pens are sold. How many are left?",
        "{a}*{b}-{c}",
    ),
    ("A farm has {a} hens and {b} cows. How many legs are there?", "2*{a}+4*{b}"),
    ("On day {a} a shop sells {b} cups at {c} each. What does it take in?", "{b}*{c}"),
    ("How many seats have {a} front rows and {b} back rows of {c} each?", "({a}+{b})*{c}"),
)


@dataclass(frozen=True)
class Problem:
    question: str
    expression: str
    answer: str


def tasks(seed: int, split: str = "train", num_tasks: int = 4000) -> Iterator[Task]:
    """The data set: ``split`` is ``train`` or ``held_out``."""
    rng = random.Random(f"{seed}-{split}")
    for index, problem in zip(range(num_tasks), problems(rng, split), strict=False):
        yield Task(
            f"{split}-{index}",
            ({"role": "user", "content": problem.question},),
            answer=problem.answer,
            data_source="code",
        )


def correct(episode: EpisodeView) -> Score:
    """The reward: whether the last message is the number, and nothing else."""
    said = episode.final_text.strip()
    calls = [call for turn in episode.turns for call in turn.calls]
    printed = [call.result.content for call in calls if call.result]
    why = {"said": said, "answer": episode.task.answer, "printed": printed[-1:]}
    return Score(float(said == episode.task.answer), why)


def held_out(a: int, b: int) -> bool:
    """Whether two operands belong to the held-out set, in either order: three tenths of all pairs,
    always the same.
    """
    low, high = sorted((a, b))
    return hashlib.sha256(f"{low},{high}".encode()).digest()[0] < 77


def problems(rng: random.Random, split: str) -> Iterator[Problem]:
    """Endless problems. Every pair of a held-out problem's operands is held out, and no pair of a
    training one's.
    """
    while True:
        question, expression = rng.choice(TEMPLATES)
        names = [name for name in "abc" if f"{{{name}}}" in question]
        while True:
            drawn = [
                rng.randrange(10 ** (digits - 1), 10**digits)
                for digits in rng.choices((2, 3, 4), (3, 2, 1), k=3)
            ]
            operands = dict(zip(names, drawn, strict=False))
            if all(
                held_out(*pair) == (split != "train")
                for pair in combinations(operands.values(), 2)
            ):
                break
        expression = expression.format(**operands)
        yield Problem(question.format(**operands), expression, str(eval(expression)))
