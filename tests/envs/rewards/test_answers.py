"""Answers: what is read as one, and which of several counts."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from agentrl.envs import EpisodeView, Rubric, exact_answer, stated_answer
from agentrl.envs.rewards import BUILT_IN
from agentrl.types import CallRecord, ToolCall, ToolResult, load_object

from .episodes import episode

SUBMITTED = {
    "exact_answer": ("42", "42", {}),
    "exact_match": ("the lamp", "Lamp", {}),
    "f1": ("the lamp", "Lamp", {}),
    "math_answer": ("6*7", "42", {}),
    "json_schema": ("{}", None, {"schema": {"type": "object"}}),
    "unit_tests": ("def f(): return 1", ["assert f() == 1"], {}),
}


def submitting(answer: str, truth: Any) -> EpisodeView:
    """An episode that submits an answer after it said another."""
    own = episode("answer: nonsense", truth)
    call = CallRecord(
        ToolCall("c", "submit", {"answer": answer}),
        None,
        ToolResult("c", "submit", "", end=True),
    )
    return replace(own, turns=(replace(own.turns[0], calls=(call,)),))


@pytest.mark.parametrize("name", SUBMITTED)
async def test_a_submitted_answer_goes_before_the_final_text(name: str) -> None:
    answer, truth, args = SUBMITTED[name]
    reward: Any = partial(load_object(BUILT_IN[name]), **args)
    reward.__name__ = name
    assert await Rubric([reward]).score(submitting(answer, truth)) == {name: 1.0}


async def test_the_form_is_that_of_the_final_text() -> None:
    text_format = load_object(BUILT_IN["text_format"])
    assert not inspect.iscoroutinefunction(text_format)
    assert text_format(submitting("42", None), pattern=r"answer: \w+").value == 1.0


@pytest.mark.parametrize("name", ["exact_answer", "exact_match", "f1", "math_answer"])
async def test_a_list_of_answers_accepts_each(name: str) -> None:
    reward = load_object(BUILT_IN[name])
    assert await Rubric([reward]).score(episode("7", ["42", "7"])) == {name: 1.0}


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The answer is 42.", "42."),
        ("answer: 1\nThen answer = 2 x", "2 x"),
        ("ANSWER is: 7", "7"),
        ("answer:\n\n  42\nmore", "42"),
        ("answers: 3", "answers: 3"),
        ("answer: 42 and the answer:   ", "42 and the answer:   "),
        ("no label", "no label"),
        ("**Answer**: Paris\n3 steps", "Paris"),
        ("**Answer:** Paris\n3 steps", "Paris"),
        ("**Final answer:** **Paris**", "Paris**"),
        ("**The answer is:**\n\nParis\n3 steps", "Paris"),
        ("The **answer** is *Paris*.", "Paris*."),
        ("_Answer_: Paris\n__Answer__: Rome", "Rome"),
        ("answer: 1\nfinal_answer = 2\nanswer_key: 3\nanswer*2 = 4", "1"),
        ("The answer isn't 5.", "The answer isn't 5."),
        ("**Answer: 42**\n\n**Answer:**", "42**"),
        ("answer:" + "*_" * 10**6, "answer:" + "*_" * 10**6),
        ("answer:" + "\n" * 10**6, "answer:" + "\n" * 10**6),
        ("answer" + " " * 10**6 + "x", "answer" + " " * 10**6 + "x"),
    ],
)
def test_what_follows_the_last_label_is_stated_in_linear_time(
    text: str, stated: str
) -> None:
    assert stated_answer(text) == stated


@pytest.mark.parametrize(
    ("truth", "text", "value"),
    [
        ("(1,2)", "The answer is (1,2).", 1.0),
        ("(1,2)", "12", 0.0),
        ("1,2,3", "answer: 1,2,3", 1.0),
        ("1,2,3", "123", 0.0),
        ("[3,4]", "[3,4]", 1.0),
        ("{1,2}", "{1,2}", 1.0),
        ("(1,200)", "(1,200)", 1.0),
        ("(1,200)", "1200", 0.0),
        ("3,5", "3,5", 1.0),
        ("3,5", "35", 0.0),
        ("1.000,50", "1.000,50", 1.0),
        ("1,00", "100", 0.0),
        ("1,234", "1234", 1.0),
        ("1,234,567.50", "It costs $1,234,567.5.", 1.0),
        (1234, "1,234", 1.0),
        (5, "1,2345", 0.0),
        (3, "1,2,3", 0.0),
        (3, "1, 2 and 3", 1.0),
        ("3/4", "3/4", 1.0),
        (4, "answer: 3/4", 0.0),
        (4, "12/3 = 4", 1.0),
        (2, "10^2", 0.0),
        (30, "12:30", 0.0),
        (-5, "x=-5", 1.0),
        (10, "a 10-year-old", 1.0),
        ("$5", "answer: **5.00**", 1.0),
        ("Paris", "**Answer**: **Paris**.", 1.0),
        ("Paris", "**Answer:**\n\n_Paris_\n\nThat took 3 steps.", 1.0),
        (42, "**Answer**: 42\n\nThat took 3 steps.", 1.0),
        (42, "The answer is **42**.", 1.0),
        ("42.", "42", 1.0),
        (0.5, ".5", 1.0),
        (-0.0, "0", 1.0),
        ("1e3", "1000", 1.0),
        (1, "1e3/2", 0.0),
        ("nan", "NaN", 1.0),
        ("1e99999999999999999999", "1e99999999999999999999", 1.0),
        (1, "answer: 1e99999999999999999999", 0.0),
    ],
)
def test_a_number_is_one_as_a_whole(truth: object, text: str, value: float) -> None:
    assert exact_answer(episode(text, truth)) == value


@pytest.mark.parametrize("text", ["9", "1,", ",111", "1/", "1.", "-", "1e"])
def test_numbers_are_looked_for_in_linear_time(text: str) -> None:
    assert exact_answer(episode(text * 200_000 + "/1 then 7", 7)) == 1.0


def test_numbers_beyond_measure_are_compared() -> None:
    assert exact_answer(episode("answer: 1e999999999", "42")) == 0.0
    assert exact_answer(episode("answer: 1,200", "1200.0")) == 1.0
