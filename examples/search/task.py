"""Search task: questions of one or two hops over a synthetic corpus of documents.

A task of your own needs the same three things: tasks, tools, and a reward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from agentrl.envs import EpisodeView
from agentrl.tools import SearchIndex, SearchTool
from agentrl.types import Task

RELATIONS = ("teacher", "rival", "cousin", "doctor", "tailor", "neighbor", "guard", "pupil")
NUM_NAMES = 4000
NUM_HELD_OUT = 500


def make_world() -> tuple[list[str], dict[tuple[str, str], str]]:
    """Names, and who is a name's teacher, rival, ...: always the same.

    Every relation is a permutation of the training names and one of the held-out names, so that the
    two never meet in a fact, and exactly two documents hold a name with a relation: the one that is
    asked for and its reverse.
    """
    rng = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    drawn: dict[str, None] = {}
    while len(drawn) < NUM_NAMES:
        drawn["".join(rng.choices(syllables, k=3))] = None
    names = list(drawn)
    facts: dict[tuple[str, str], str] = {}
    for relation in RELATIONS:
        for block in (names[:-NUM_HELD_OUT], names[-NUM_HELD_OUT:]):
            facts |= {
                (relation, name): other
                for name, other in zip(block, rng.sample(block, len(block)), strict=True)
            }
    return names, facts


NAMES, FACTS = make_world()
INDEX = SearchIndex(
    [
        (f"{relation}-{name}", f"{relation} of {name}", FACTS[relation, name])
        for relation, name in FACTS
    ]
)
search = SearchTool(INDEX, top_k=2)


@dataclass(frozen=True)
class Question:
    text: str
    hops: tuple[tuple[str, str], ...]  # (relation, name) to look up, in order
    answer: str


def tasks(seed: int, split: str = "train", num_tasks: int = 4000) -> Iterator[Task]:
    """The data set: ``split`` is ``train`` or ``held_out``."""
    rng = random.Random(f"{seed}-{split}")
    for index, question in zip(range(num_tasks), questions(rng, split), strict=False):
        yield Task(
            f"{split}-{index}",
            ({"role": "user", "content": question.text},),
            answer=question.answer,
            data_source=f"{len(question.hops)}-hop",
        )


def correct(episode: EpisodeView) -> float:
    """The reward: whether the last message is the name, and nothing else."""
    return float(episode.final_text.strip() == episode.task.answer)


def questions(rng: random.Random, split: str) -> Iterator[Question]:
    """Endless questions, two thirds of them of two hops, about the names of one split alone."""
    names = NAMES[:-NUM_HELD_OUT] if split == "train" else NAMES[-NUM_HELD_OUT:]
    while True:
        name = rng.choice(names)
        chain = name
        hops = []
        for relation in rng.sample(RELATIONS, rng.choice((1, 2, 2))):
            hops.append((relation, chain))
            chain = FACTS[relation, chain]
        phrase = " of ".join(f"the {relation}" for relation, _ in reversed(hops))
        yield Question(f"Who is {phrase} of {name}?", tuple(hops), chain)
