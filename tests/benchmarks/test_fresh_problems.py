"""The problems of ``benchmarks/fresh``: nothing in them was met in training, nor when settings were
chosen.
"""

from __future__ import annotations

import random
import re
from itertools import combinations, islice

import pytest

from agentrl.types import load_object
from benchmarks.fresh import code, search
from benchmarks.fresh.unseen import EARLIER_SEEDS, EXAMPLES, prompt, unseen

pytestmark = pytest.mark.tooling

SEEDS = (0, 1, 2)


def pairs_of(text: str) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in combinations(map(int, re.findall(r"\d+", text)), 2)}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text)) & set(search.NAMES)


@pytest.fixture(scope="module")
def fresh_pairs() -> set[frozenset[int]]:
    return {
        pair for task in code.tasks() for pair in pairs_of(str(task.messages[0]["content"]))
    }


@pytest.fixture(scope="module")
def fresh_names() -> set[str]:
    return {
        name
        for task in search.tasks()
        for name in names_in(f"{task.messages[0]['content']} {task.answer}")
    }


def test_a_thousand_problems_and_three_hundred_questions() -> None:
    assert len({str(task.messages[0]["content"]) for task in code.tasks()}) == 1000
    questions = list(search.tasks())
    assert len({str(task.messages[0]["content"]) for task in questions}) == 300
    assert sum(task.data_source == "2-hop" for task in questions) == 200


@pytest.mark.parametrize("seed", SEEDS)
def test_no_operand_pair_occurs_in_training(
    fresh_pairs: set[frozenset[int]], seed: int
) -> None:
    tasks = load_object("task.py:tasks", code.EXAMPLE)(seed)
    rows = islice(load_object("warmup.py:demonstrations", code.EXAMPLE)(seed), 500 * 32)
    asked = [task.messages[0]["content"] for task in tasks] + [
        row["messages"][0]["content"] for row in rows
    ]
    assert fresh_pairs.isdisjoint(pair for text in asked for pair in pairs_of(text))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_operand_pair_occurs_in_the_earlier_held_out_problems(
    fresh_pairs: set[frozenset[int]], seed: int
) -> None:
    earlier = load_object("task.py:tasks", code.EXAMPLE)(
        seed, split="held_out", num_tasks=1000
    )
    assert fresh_pairs.isdisjoint(
        pair for task in earlier for pair in pairs_of(task.messages[0]["content"])
    )


def test_no_name_occurs_in_training(fresh_names: set[str]) -> None:
    tasks = load_object("task.py:tasks", search.EXAMPLE)(0)
    rows = islice(load_object("warmup.py:demonstrations", search.EXAMPLE)(0), 3000)
    said = [f"{task.messages[0]['content']} {task.answer}" for task in tasks]
    said += [str(message) for row in rows for message in row["messages"]]
    assert fresh_names.isdisjoint(name for text in said for name in names_in(text))


def test_no_name_occurs_in_the_earlier_held_out_questions(fresh_names: set[str]) -> None:
    earlier = random.Random("0-held_out")
    met = set()
    for question in islice(search.questions(earlier, "held_out"), 300):
        met |= {question.answer, *(name for _, name in question.hops)}
    assert fresh_names.isdisjoint(met)


def test_an_answer_of_two_hops_follows_the_facts() -> None:
    task = next(task for task in search.tasks() if task.data_source == "2-hop")
    found = re.fullmatch(
        r"Who is the (\w+) of the (\w+) of (\w+)\?", str(task.messages[0]["content"])
    )
    assert found is not None
    last, first, name = found.groups()
    assert task.answer == search.FACTS[last, search.FACTS[first, name]]


@pytest.mark.parametrize("example", ["game", "api"])
def test_unseen_tasks_were_never_met(example: str) -> None:
    fresh = [prompt(task) for task in unseen(example, 500)]
    assert len(set(fresh)) == 500
    tasks = load_object("task.py:tasks", EXAMPLES / example)
    met = {prompt(task) for seed in SEEDS for task in tasks(seed)}
    met |= {prompt(task) for seed in EARLIER_SEEDS for task in tasks(seed, "held_out", 200)}
    assert met.isdisjoint(fresh)
