"""Terminal log: which records are shown, and where."""

from __future__ import annotations

import logging
import time

from agentrl.terminal_log import warnings_on


def warn(name: str, text: str) -> None:
    logging.getLogger(name).warning(text)


def test_warnings_are_shown_and_facts_are_not() -> None:
    shown: list[str] = []
    with warnings_on(shown.append):
        warn("agentrl.sandbox.pool", "a sandbox could not be closed")
        logging.getLogger("agentrl.controller.checkpoints").info("checkpoint written")
    assert shown == ["a sandbox could not be closed"]


def test_a_display_takes_over_while_it_lasts() -> None:
    outside: list[str] = []
    inside: list[str] = []
    with warnings_on(outside.append):
        warn("agentrl.run", "before")
        with warnings_on(inside.append):
            warn("agentrl.run", "within")
        warn("agentrl.run", "after")
    assert (outside, inside) == (["before", "after"], ["within"])


def said(text: str, at: float) -> logging.LogRecord:
    record = logging.LogRecord(
        "agentrl.rollouts.runner", logging.WARNING, "", 0, text, (), None
    )
    record.created = at
    return record


def test_warnings_that_differ_by_numbers_and_names_are_counted() -> None:
    shown: list[str] = []
    line = (
        "episode %d-0-0 failed (env) and is retried: KeyError for task 'q-%d' (env.py:12)"
    )
    with warnings_on(shown.append):
        logger = logging.getLogger("agentrl.rollouts.runner")
        for number in range(100):
            logger.handle(said(line % (number, number), at=1000.0 + number / 10))
        logger.handle(said(line % (7, 8) + " and more", at=1010.0))  # another text
        # another place
        logger.handle(said((line % (7, 8)).replace(":12", ":40"), at=1010.0))
        logger.handle(said(line % (500, 3), at=1060.0))  # a minute later
        logger.handle(said(line % (501, 4), at=1060.0))
    assert shown == [
        line % (0, 0),
        line % (7, 8) + " and more",
        (line % (7, 8)).replace(":12", ":40"),
        line % (500, 3) + " (and 99 more like it before)",
        "1 more like: episode # failed (env) and is retried: KeyError for task '#' (env.py:12)",
    ]


def test_a_message_of_any_words_costs_linear_time() -> None:
    started = time.process_time()
    with warnings_on(lambda text: None):
        for word in ("a-", "-", "x.py:", "1-"):
            warn("agentrl.run", word * 20_000)
    assert time.process_time() - started < 2  # quadratic: a minute


def test_warnings_of_any_number_of_kinds_are_counted_in_bounded_memory() -> None:
    shown: list[str] = []
    with warnings_on(shown.append):
        logger = logging.getLogger("agentrl.rollouts.runner")
        for number in range(3000):
            word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
            logger.handle(said(f"odd {word}", at=1.0))
            (handler,) = logging.getLogger("agentrl").handlers
            assert len(vars(handler)["_shown"]) <= 1000
    assert len(shown) == 3000


def test_what_comes_as_an_incident_is_not_shown_twice() -> None:
    shown: list[str] = []
    with warnings_on(shown.append):
        warn("agentrl.engines.servers.pool", "server 0 was lost")
        warn("agentrl.controller.cluster.supervision", "worker 1 was lost")
    assert shown == []
