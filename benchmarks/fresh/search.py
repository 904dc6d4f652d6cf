"""Fresh search questions: questions of the search example that no setting was chosen on.

They are about held-out names that occur in none of the held-out questions looked at while the
example's settings were chosen: not as the name asked about, nor on the way, nor as the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, permutations
from pathlib import Path

from agentrl.types import Task, load_object

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "search"
FACTS, NAMES, NUM_HELD_OUT, RELATIONS, questions = (
    load_object(f"task.py:{name}", EXAMPLE)
    for name in ("FACTS", "NAMES", "NUM_HELD_OUT", "RELATIONS", "questions")
)

# The held-out questions examined earlier: the example's seed, and as many as its configuration asks
# for.
EARLIER_SEED = 0
EARLIER_TASKS = 300


def chain(name: str, relations: tuple[str, ...]) -> list[str]:
    """``name``, and who is met from it by one relation after another."""
    met = [name]
    for relation in relations:
        met.append(FACTS[relation, met[-1]])
    return met


def earlier_names() -> set[str]:
    """The names of the held-out questions examined earlier."""
    met: set[str] = set()
    for question in islice(
        questions(random.Random(f"{EARLIER_SEED}-held_out"), "held_out"), EARLIER_TASKS
    ):
        met |= set(
            chain(question.hops[0][1], tuple(relation for relation, _ in question.hops))
        )
    return met


def tasks(num_tasks: int = 300) -> Iterator[Task]:
    """The data set: always the same, no question twice, a third of one hop and two thirds of two as
    in training.
    """
    fresh = set(NAMES[-NUM_HELD_OUT:]) - earlier_names()
    rng = random.Random("fresh")
    asked = []
    for hops, share in ((1, num_tasks - num_tasks * 2 // 3), (2, num_tasks * 2 // 3)):
        possible = [
            (name, relations)
            for name in sorted(fresh)
            for relations in permutations(RELATIONS, hops)
            if fresh.issuperset(chain(name, relations))
        ]
        asked += rng.sample(possible, share)
    for index, (name, relations) in enumerate(asked):
        phrase = " of ".join(f"the {relation}" for relation in reversed(relations))
        message = {"role": "user", "content": f"Who is {phrase} of {name}?"}
        yield Task(
            f"fresh-{index}",
            (message,),  # type: ignore[arg-type]
            answer=chain(name, relations)[-1],
            data_source=f"{len(relations)}-hop",
        )
