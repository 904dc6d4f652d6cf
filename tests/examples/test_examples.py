"""What the two examples promise about their data, their demonstrations and their configuration."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.tools import HermesParser, SearchTool, ToolContext, ToolExecutor
from agentrl.types import load_object

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(example: str, name: str) -> Any:
    return load_object(name, EXAMPLES / example)


def operand_pairs(text: str) -> set[frozenset[int]]:
    """Unordered pairs of the numbers in a text; templates' own constants have one digit, operands
    at least two.
    """
    return {
        frozenset(pair)
        for pair in combinations([int(n) for n in re.findall(r"\d\d+", text)], 2)
    }


@pytest.mark.parametrize("example", ["code", "search"])
def test_the_configuration_loads_and_names_what_exists(example: str) -> None:
    config = load_config(EXAMPLES / example / "config.yaml")
    assert [stage.name for stage in config.resolved_stages()] == ["warmup", "rl"]
    warmup, rl = config.resolved_stages()
    for reference in (
        config.model.build,
        warmup.data.train,
        rl.data.train,
        rl.eval.sets[example].data,
    ):
        assert callable(load(example, str(reference)))


@pytest.mark.parametrize("example", ["code", "search"])
def test_a_model_of_ones_own_skips_the_warm_up(example: str) -> None:
    config = load_config(EXAMPLES / example / "config.yaml", ["model.path=some/model"])
    assert [stage.name for stage in config.resolved_stages()] == ["rl"]


@pytest.mark.parametrize("example", ["code", "search"])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_tasks_are_the_same_for_the_same_seed_and_have_ids_of_their_own(
    example: str, split: str
) -> None:
    tasks = load(example, "task.py:tasks")
    first = list(tasks(3, split, num_tasks=200))
    assert first == list(tasks(3, split, num_tasks=200))
    assert len({task.id for task in first}) == 200
    assert first != list(tasks(4, split, num_tasks=200))


@pytest.mark.parametrize("example", ["code", "search"])
def test_demonstrations_are_the_same_for_the_same_seed_and_do_not_repeat(
    example: str,
) -> None:
    demonstrations = load(example, "warmup.py:demonstrations")
    first = list(islice(demonstrations(3), 100))
    assert first == list(islice(demonstrations(3), 100))
    assert first != list(islice(demonstrations(4), 100))
    assert len({row["messages"][0]["content"] for row in first}) > 90


# --- code


def test_no_operand_pair_of_the_held_out_problems_occurs_in_training() -> None:
    held_out = load("code", "task.py:held_out")
    tasks = load("code", "task.py:tasks")
    demonstrations = load("code", "warmup.py:demonstrations")
    held = [
        operand_pairs(task.messages[0]["content"])
        for task in tasks(0, "held_out", num_tasks=1000)
    ]
    trained = [
        operand_pairs(task.messages[0]["content"])
        for task in tasks(0, "train", num_tasks=2000)
    ]
    trained += [
        operand_pairs(row["messages"][0]["content"])
        for row in islice(demonstrations(0), 2000)
    ]
    assert set().union(*held).isdisjoint(set().union(*trained))
    # by construction, whatever is drawn: the two are the sides of one fixed rule
    assert all(held_out(min(pair), max(pair)) for pairs in held for pair in pairs)
    assert not any(held_out(min(pair), max(pair)) for pairs in trained for pair in pairs)


def test_a_held_out_pair_is_held_out_in_either_order() -> None:
    held_out = load("code", "task.py:held_out")
    assert all(
        held_out(a, b) == held_out(b, a) for a in range(10, 60) for b in range(10, 60)
    )


def test_the_demonstrated_code_holds_only_operands_of_its_question() -> None:
    demonstrations = load("code", "warmup.py:demonstrations")
    for row in islice(demonstrations(0), 2000):
        asked = set(re.findall(r"\d\d+", row["messages"][0]["content"]))
        for message in row["messages"]:
            for call in message.get("tool_calls", ()):
                assert (
                    set(re.findall(r"\d\d+", call["function"]["arguments"]["code"]))
                    <= asked
                )


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_template_occurs_as_often_as_the_others(split: str) -> None:
    problems = load("code", "task.py:problems")
    templates = load("code", "task.py:TEMPLATES")
    drawn = Counter(
        re.sub(r"\d+", "#", problem.question)
        for problem in islice(problems(random.Random(0), split), 1600)
    )
    assert drawn.keys() == {re.sub(r"\{.\}", "#", question) for question, _ in templates}
    assert min(drawn.values()) > 140  # of 200


def test_the_commonest_code_demonstration_is_wrong_as_the_page_says() -> None:
    demonstrations = load("code", "warmup.py:demonstrations")
    slip = load("code", "warmup.py:slip")
    rows = [row["messages"] for row in islice(demonstrations(0), 4000)]
    shares = Counter[str]()
    for first, *others in rows:
        expression = right_expression(first["content"])
        shown = str(others)
        shares["slip"] += f"print({slip(expression)})" in shown
        shares["right"] += others[-1]["content"] == str(eval(expression))
        shares["guess"] += len(others) == 1
        shares["broken"] += "Error: " in shown
    assert {kind: count / len(rows) for kind, count in shares.items()} == pytest.approx(
        {
            "slip": 0.75 * 0.80,
            "right": 0.25 + 0.75 * 0.06 / 2,
            "guess": 0.75 * 0.08,
            "broken": 0.75 * 0.06,
        },
        abs=0.02,
    )


def right_expression(question: str) -> str:
    """What solves a problem of the code example."""
    for template, expression in load("code", "task.py:TEMPLATES"):
        pattern = re.sub(r"\{(.)\}", r"(?P<\1>\\d+)", template.replace("?", r"\?"))
        if found := re.fullmatch(pattern, question):
            return str(expression.format(**found.groupdict()))
    raise AssertionError(question)


def test_demonstrations_without_noise_solve_every_problem() -> None:
    problems = load("code", "task.py:problems")
    demonstrations = load("code", "warmup.py:demonstrations")
    answers = {
        problem.question: problem.answer
        for problem in islice(problems(random.Random(0), "train"), 1000)
    }
    rows = [row["messages"] for row in islice(demonstrations(0, noise=0.0), 500)]
    shown = {messages[0]["content"]: messages[-1]["content"] for messages in rows}
    common = answers.keys() & shown.keys()
    assert all(answers[question] == shown[question] for question in common)


# --- search


def test_a_relation_and_a_name_are_in_two_documents_the_fact_and_its_reverse() -> None:
    facts, index = load("search", "task.py:FACTS"), load("search", "task.py:INDEX")
    for (relation, name), other in random.Random(0).sample(sorted(facts.items()), 50):
        hits = [hit.document for hit in index.search(f"{relation} of {name}", 2)]
        assert (f"{relation} of {name}", other) in [(hit.title, hit.text) for hit in hits]
        assert all(
            name in (hit.text, hit.title.split()[-1]) and hit.title.startswith(relation)
            for hit in hits
        )


def test_held_out_names_never_meet_training_names_in_a_fact() -> None:
    names, facts, num = (
        load("search", f"task.py:{name}") for name in ("NAMES", "FACTS", "NUM_HELD_OUT")
    )
    held = set(names[-num:])
    assert len(names) == 4000
    assert all((name in held) == (other in held) for (_, name), other in facts.items())


def test_questions_of_a_split_and_demonstrations_stay_among_their_names() -> None:
    names, num = load("search", "task.py:NAMES"), load("search", "task.py:NUM_HELD_OUT")
    held = set(names[-num:])
    tasks = load("search", "task.py:tasks")
    for split in ("train", "held_out"):
        for task in tasks(0, split, num_tasks=500):
            asked = task.messages[0]["content"].rstrip("?").split()[-1]
            assert (asked in held) == (task.answer in held) == (split == "held_out")
    for row in islice(load("search", "warmup.py:demonstrations")(0), 500):
        words = set(
            re.findall(
                r"[a-z]+", " ".join(str(message["content"]) for message in row["messages"])
            )
        )
        assert words.isdisjoint(held)


def test_two_thirds_of_the_questions_have_two_hops() -> None:
    tasks = list(load("search", "task.py:tasks")(0, num_tasks=1200))
    assert sum(task.data_source == "2-hop" for task in tasks) / len(tasks) == pytest.approx(
        2 / 3, abs=0.05
    )


# --- what a demonstration shows is what an episode would have seen


async def test_a_demonstrated_search_has_the_tools_own_answer() -> None:
    tool: SearchTool = load("search", "task.py:search")
    shown = 0
    for row in islice(load("search", "warmup.py:demonstrations")(0), 60):
        for message, answer in zip(row["messages"], row["messages"][1:], strict=False):
            for call in message.get("tool_calls", ()):
                assert (
                    await tool.call(call["function"]["arguments"], ToolContext())
                    == answer["content"]
                )
                shown += 1
    assert shown > 40


@pytest.mark.parametrize("example", ["code", "search"])
async def test_a_demonstrated_broken_call_has_the_executors_own_answer(
    example: str,
) -> None:
    broken_call = load(example, "../turns.py:broken_call")
    message, answer = broken_call("python", code="print(12*34)")
    parsed = HermesParser().parse(message["content"])
    (record,) = await ToolExecutor([]).run((), parsed.problems)
    assert record.result is not None
    assert record.result.message()["content"] == answer["content"]
