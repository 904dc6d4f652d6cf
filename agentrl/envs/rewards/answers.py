"""Answers: whether the stated answer is the task's."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from agentrl.envs.view import EpisodeView
from agentrl.errors import RewardError

# Possessive, since the policy writes the text: otherwise spaces are tried in every split.
_LABEL = re.compile(r"\banswer\s*+(?:is|:|=)\s*+(?::\s*+)?(.+)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?<!\d)[-+])?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FENCE = "```"
_EDGES = " \t\r\n.,;:!?\"'`*_$()[]{}<>"


def exact_answer(view: EpisodeView) -> float:
    """1.0 where the answer that was submitted, or else the final text's, is ``task.answer`` (or one
    of them, if it is a list), else 0.0.

    Numbers are equal by value (``1,200`` is ``1200.0``), text without case, outer punctuation and
    repeated spaces.

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
        raise RewardError(f"{reward} needs the answer of task {view.task.id!r}, got {own!r}")
    return [str(truth) for truth in truths]


def said_text(view: EpisodeView) -> str:
    """The answer that was submitted, or else the final text."""
    return view.final_text if view.submitted is None else view.submitted


def said_answer(view: EpisodeView) -> str:
    """The answer that was submitted, or else what the final text states."""
    return stated_answer(view.final_text) if view.submitted is None else view.submitted


def stated_answer(text: str) -> str:
    """What follows the last ``answer:`` (or ``answer is``) on its line; the whole text where there
    is none.
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
    number = _as_number(truth)
    if number is None:
        return _normal(answer) == _normal(truth)
    numbers = [
        found for match in _NUMBER.findall(answer) if (found := _as_number(match)) is not None
    ]
    return bool(numbers) and numbers[-1] == number


def _as_number(text: str) -> Decimal | None:
    try:
        number = Decimal(text.strip(_EDGES.replace(".", "")).replace(",", "").rstrip("."))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _normal(text: str) -> str:
    return " ".join(text.casefold().strip(_EDGES).split())
