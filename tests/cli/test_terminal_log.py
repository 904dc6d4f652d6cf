"""Terminal log: which records are shown, and where."""

from __future__ import annotations

import logging

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


def test_what_comes_as_an_incident_is_not_shown_twice() -> None:
    shown: list[str] = []
    with warnings_on(shown.append):
        warn("agentrl.engines.servers.pool", "server 0 was lost")
        warn("agentrl.controller.cluster.supervision", "worker 1 was lost")
    assert shown == []
