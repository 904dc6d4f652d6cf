"""Math answers: equal expressions, and texts that would hang or crash computer algebra."""

from __future__ import annotations

import time

import pytest

from agentrl.envs.rewards.answers import math_answer
from agentrl.errors import RewardError

from .episodes import episode


@pytest.mark.parametrize(
    ("said", "answer", "value"),
    [
        ("The answer is $\\frac{1}{2}$.", "0.5", 1.0),
        ("so \\boxed{\\frac{2}{4}}", "\\frac{1}{2}", 1.0),
        ("It is 72.", "72", 1.0),
        ("$x^2 - 1$", "(x-1)(x+1)", 1.0),
        ("\\boxed{\\{1, 2\\}}", "\\{2, 1\\}", 1.0),
        ("It is 73.", "72", 0.0),
        ("**Answer**: 72\nThat took 3 steps.", "72", 1.0),
        ("Answer: **72**\nThat took 3 steps.", "72", 1.0),
        ("**Answer: 72**", "72", 1.0),
        ("The answer is **72**. That took 3 steps.", "72", 1.0),
        ("The answer is **_72_**.", "72", 1.0),
        ("Answer: ***3/4***", "3/4", 1.0),
        ("It costs **\\$18.90**.", "18.9", 1.0),
        ("Answer: **$\\frac{1}{2}$**", "0.5", 1.0),
        ("**\\boxed{5}**", "5", 1.0),
        # powers, products and indices stay
        ("Answer: 2**3", "8", 1.0),
        ("Answer: 2**3 + 4**2", "24", 1.0),
        ("Answer: (1+1)**3", "8", 1.0),
        ("Answer: 2*3*4", "24", 1.0),
        ("$\\sum _{i=1}^{3} i + x_{1} - x_{1}$", "6", 1.0),
        ("I do not know.", "72", 0.0),
        ("", "72", 0.0),
        ("It is 5.", ["4", "5"], 1.0),
        ("\\boxed{3} no wait \\boxed{5}", "5", 1.0),
        ("\\boxed{3} no wait \\boxed{5}", "3", 0.0),
        ("\\boxed{3} no wait \\boxed{5}", "3,5", 0.0),
        ("The roots are $\\boxed{3}$ and $\\boxed{5}$.", "5", 1.0),
        ("$x = \\boxed{3}$, so $y = \\boxed{\\frac{1}{2}}$. It is 7.", "0.5", 1.0),
        ("\\boxed{\\boxed{5}}", "5", 1.0),
        ("\\boxed{5} is right. So it is \\boxed{7", "5", 1.0),
        ("\\boxed{3}. The final answer is $5$.", "5", 1.0),
        ("\\boxed{\\$18.90}", "\\$18.90", 1.0),
        ("\\boxed{18.9}", "\\$18.90", 1.0),
        ("It costs \\$18.90.", "\\$18.90", 1.0),
        ("It costs $18.90.", "\\$18.90", 1.0),
        ("\\boxed{\\$19.80}", "\\$18.90", 0.0),
        ("\\boxed{32348}", "\\$32,\\!348", 1.0),
        ("\\boxed{1\\,000\\,000}", "1,000,000", 1.0),
        ("\\boxed{(1,\\,2)}", "(1,2)", 1.0),
        (
            "\\boxed{\\begin{pmatrix}1\\\\2\\end{pmatrix}}",
            "$\\begin{pmatrix}1\\\\2\\end{pmatrix}$",
            1.0,
        ),
    ],
)
def test_answers(said: str, answer: object, value: float) -> None:
    assert math_answer(episode(said, answer)).value == value


@pytest.mark.parametrize(
    "said",
    [
        "$9^{9^{9^{9^{9}}}}$",
        "$\\sum_{n=1}^{10^{9}} n^{n}$",
        "$" + "(" * 5000 + "1",
        "\x00\ud800",
    ],
)
def test_a_hostile_text_is_wrong_and_bounded_in_time(said: str) -> None:
    start = time.monotonic()
    score = math_answer(episode(said, "72"), cpu_s=1.0)
    assert score.value == 0.0
    assert time.monotonic() - start < 60
    assert math_answer(episode("72", "72")).value == 1.0  # a worker that ended is replaced


def test_an_answer_of_the_task_that_is_no_expression_is_a_failure() -> None:
    with pytest.raises(
        RewardError, match=r"cannot read the answer of task 't-1'.*correct it"
    ):
        math_answer(episode("72", ["72", ""]))


def test_the_reason_has_what_was_read() -> None:
    why = math_answer(episode("It is 73.", "72")).why
    assert why == {"answer": "72", "correct": False, "read": "73"}
