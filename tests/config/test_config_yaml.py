"""The file is YAML 1.2: scalars mean what they look like."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.document import parse_value
from agentrl.config.load import load_config

Problems = Callable[..., list[str]]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1e5", 1e5),
        (".5", 0.5),
        ("-2.5e+3", -2500.0),
        ("012", 12),
        ("+7", 7),
        ("-0x1F", -31),
        ("0o14", 12),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2001-01-01", "2001-01-01"),
        ("12:30:45", "12:30:45"),
        ("task.py:tasks", "task.py:tasks"),
        ("'12'", "12"),
        ("[1, 2.0, no]", [1, 2.0, "no"]),
        ("{a: {b: 1e-3}}", {"a": {"b": 1e-3}}),
        ("-.inf", -math.inf),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    found = parse_value(text)
    assert (found, type(found)) == (value, type(value))


def test_the_same_scalars_in_a_file(write: Callable[[str], Path]) -> None:
    config = load_config(
        write("optim: {lr: 1e-6}\ntrain: {steps: 012}\nrun: {notes: no}\n")
    )
    assert (config.optim.lr, config.train.steps, config.run.notes) == (1e-6, 12, "no")


def test_a_key_given_twice_says_where_the_first_is(problems: Problems) -> None:
    assert problems("optim:\n  lr: 1\n  lr: 2\n") == [
        "config.yaml:5:3: optim.lr is given twice, first at config.yaml:4:3"
    ]


def test_a_tag_is_refused(problems: Problems) -> None:
    assert problems("run: {notes: !secret x}\n") == [
        "config.yaml:3:14: run.notes must have no YAML tag, got !secret"
    ]


def test_an_anchor_repeats_its_value(write: Callable[[str], Path]) -> None:
    config = load_config(write("optim: {name: muon, lr: &rate 0.5, muon_lr: *rate}\n"))
    assert config.optim.muon_lr == 0.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "run: &x {notes: *x}",
            "3:6: run.notes must not stand within itself; write it out",
        ),
        (
            "env: {tools: &x [*x]}",
            "3:14: env.tools.0 must not stand within itself; write it out",
        ),
        (
            "run: {seed: !!int abc}",
            "3:13: run.seed cannot be read as a YAML int, got 'abc'",
        ),
        (
            "run: {seed: !!bool abc}",
            "3:13: run.seed cannot be read as a YAML bool, got 'abc'",
        ),
        (
            f"run: {{seed: {'1' * 5000}}}",
            f"3:13: run.seed cannot be read as a YAML int, got '{'1' * 80}…'",
        ),
    ],
)
def test_a_value_that_cannot_be_read_has_a_place(
    problems: Problems, text: str, told: str
) -> None:
    assert f"config.yaml:{told}" in problems(f"{text}\n")


def test_an_override_that_cannot_be_read_is_named(problems: Problems) -> None:
    (told,) = problems("", ["run.seed=!!int abc"])
    assert told.startswith(
        "command line: run.seed=!!int abc: the value of run.seed is not YAML"
    )
