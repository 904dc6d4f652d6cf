"""Answers: whether the stated answer is the task's, by value, by SQuAD's measure or as mathematics.

- Expressions are compared in worker processes, since computer algebra has no bound of its own.
- The policy's text can end a worker by its time or memory; that is a wrong answer. A worker that
  fails before it has read the task's own answer is a failure.
- Workers are kept for later answers, and end with this process at the latest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import string
import threading
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.guards.child_process import ChildEndedError, ChildLimits, ask_child
from agentrl.types.user_code.load import install
from agentrl.types.user_code.values import shown

# Possessive, since the policy writes the text: otherwise spaces are tried in every split. Marks of
# Markdown's emphasis may stand around the label, and between it and what it states. An underscore
# is one where a word begins with it: final_answer is a name.
_LABEL = re.compile(
    r"(?:\b|(?<=\b_)|(?<=\b__))answer[*_]*+\s*+(?:is\b|:|=)[*_\s]*+(?::[*_\s]*+)?(.+)",
    re.IGNORECASE,
)
# Commas divide groups of three digits alone. What a sign joins to another number is none of its
# own: 3/4 is not 4, and 1,2 is not 12.
_NUMBER = re.compile(
    r"(?<!\d)(?<!\d[*/^:,.])[-+]?"
    r"(?:(?:\d{1,3}+(?:,\d{3})++|\d++)(?:\.\d++)?|\.\d++)(?:[eE][-+]?\d++)?+"
    r"(?![*/^:,.]?\d)"
)
_FENCE = "```"
_MARKS = " \t\r\n.,;:!?\"'`*_$"
_EDGES = f"{_MARKS}()[]{{}}<>"


def exact_answer(view: EpisodeView) -> float:
    """1.0 where the answer that was submitted, or else the final text's, is ``task.answer`` (or one
    of them, if it is a list), else 0.0.

    A number is equal by value (``1,200`` is ``1200.0``) to the last one that is stated; a part of
    another (``3/4``, ``1,2``) is none. Text, lists too, is equal without case, outer punctuation
    and repeated spaces.

    Raises:
        RewardError: the task has no answer.
    """
    text = said_text(view)
    return float(any(_agrees(text, truth) for truth in true_answers(view, "exact_answer")))


def true_answers(view: EpisodeView, reward: str) -> list[str]:
    """The answers of the task, any of which is right.

    Args:
        view: the episode.
        reward: who asks, for the error.

    Raises:
        RewardError: the task has none.
    """
    own = view.task.answer
    truths = list(own) if isinstance(own, (list, tuple)) else [own]
    if not truths or None in truths:
        raise RewardError(
            f"{reward} needs the answer of task {view.task.id!r}, got {own!r}"
        )
    return [str(truth) for truth in truths]


def said_text(view: EpisodeView) -> str:
    """The answer that was submitted, or else the final text."""
    return view.final_text if view.submitted is None else view.submitted


def said_answer(view: EpisodeView) -> str:
    """The answer that was submitted, or else what the final text states."""
    return stated_answer(view.final_text) if view.submitted is None else view.submitted


def stated_answer(text: str) -> str:
    """What follows the last ``answer:`` (or ``answer is``, ``**Answer**:``) on its line; the whole
    text where there is none.
    """
    stated = _LABEL.findall(text)
    return str(stated[-1]) if stated else text


def last_block(text: str) -> str | None:
    """What stands in the last closed block between lines of three backticks; None where there is
    none. In time linear in the text, whatever it is.
    """
    found = None
    start = text.find(_FENCE)
    while start >= 0 and (begin := text.find("\n", start + len(_FENCE)) + 1):
        end = text.find(_FENCE, begin)
        if end < 0:
            break
        found = text[begin:end]
        start = text.find(_FENCE, end + len(_FENCE))
    return found


def _agrees(text: str, truth: str) -> bool:
    answer = stated_answer(text)
    number = _as_number(truth.strip(_MARKS.replace(".", "")).rstrip("."))
    if number is None:
        return _normal(answer) == _normal(truth)
    numbers = _NUMBER.findall(answer)
    return bool(numbers) and _as_number(numbers[-1]) == number


def _as_number(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None
    except InvalidOperation:
        # Its exponent is beyond any that a Decimal has.
        return None


def _normal(text: str) -> str:
    return " ".join(text.casefold().strip(_EDGES).split())


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(view: EpisodeView) -> float:
    """1.0 where the answer equals one of the task's after SQuAD's normalisation, else 0.0
    (arXiv:1606.05250, sec. 6.1, and the evaluation script of version 1.1).

    Raises:
        RewardError: the task has no answer.
    """
    said = normalised(said_answer(view))
    return float(
        any(said == normalised(truth) for truth in true_answers(view, "exact_match"))
    )


def f1(view: EpisodeView) -> float:
    """The harmonic mean of precision and recall over words, after the same normalisation; of
    several answers the best.

    Raises:
        RewardError: the task has no answer.
    """
    said = normalised(said_answer(view)).split()
    return max(
        _overlap(said, normalised(truth).split()) for truth in true_answers(view, "f1")
    )


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and repeated spaces, in this order."""
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def _overlap(said: Iterable[str], truth: Iterable[str]) -> float:
    mine, theirs = Counter(said), Counter(truth)
    common = (mine & theirs).total()
    # 2PR / (P + R), with P = common / mine and R = common / theirs.
    return 2 * common / (mine.total() + theirs.total()) if common else 0.0


_WORKER = Path(__file__).with_name("math_worker.py")
_START_S = 60.0
_MEMORY_BYTES = 4 * 2**30
_READ_CHARS = 20_000
"""Of the end of a text, where the answer is."""


def math_answer(view: EpisodeView, *, cpu_s: float = 5.0) -> Score:
    """1.0 where the last expression of the text, or the submitted one, equals the task's answer (or
    one of them), else 0.0.

    Args:
        view: the episode; ``task.answer`` is LaTeX, a number or an expression.
        cpu_s: seconds of processor time for one comparison; what takes longer is 0.0.

    Raises:
        ConfigError: math-verify is not installed.
        RewardError: the task has no answer that can be read, or the machine was too slow.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError(f"math_answer needs math-verify; {install('math')}")
    golds = true_answers(view, "math_answer")
    with _workers_allowed:
        answer = _compare(golds, said_text(view)[-_READ_CHARS:], cpu_s, view.task.id)
    return Score(float(answer["correct"]), {"answer": view.task.answer, **answer})


def _compare(golds: list[str], said: str, cpu_s: float, task_id: str) -> dict[str, Any]:
    limits = ChildLimits(_START_S + 4 * cpu_s, cpu_s, _MEMORY_BYTES)
    try:
        readable = _ask({"gold": golds}, limits)
    except ChildEndedError as error:
        raise RewardError(
            f"math_answer could not read the answer of task {task_id!r} within its limits, got "
            f"{shown(golds, 200)}; correct it, or raise cpu_s={cpu_s:g}"
        ) from error
    if not readable:
        raise RewardError(
            f"math_answer cannot read the answer of task {task_id!r} as an expression, got "
            f"{shown(golds, 200)}; correct it"
        )
    try:
        found: dict[str, Any] = _ask({"gold": golds, "said": said}, limits)
    except ChildEndedError:
        return {
            "correct": False,
            "read": None,
            "ended": f"more than {cpu_s:g} s, or memory",
        }
    return found


def _ask(request: dict[str, Any], limits: ChildLimits) -> Any:
    """A worker's answer.

    Raises:
        ChildEndedError: a limit of its processor time or memory ended it.
        RewardError: it neither answered nor ended in time, since the machine is too busy.
    """
    try:
        return json.loads(
            ask_child(_WORKER, json.dumps(request).encode(), limits, keep=True)
        )
    except ChildEndedError as error:
        if not error.is_late:
            raise
        raise RewardError(
            f"a worker of math_answer gave no answer within {limits.time_s:g} s; the machine is "
            "too busy, so run fewer episodes at once"
        ) from error


_workers_allowed = threading.BoundedSemaphore(max(os.cpu_count() or 1, 2))
"""Comparisons at once in this process; further threads wait."""
