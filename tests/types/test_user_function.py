"""A function that a setting names: what is wrong with it is told as an error of the setting."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.types.section import Section
from agentrl.types.user_code.load import (
    UserFunction,
    check_takes,
    load_function,
    load_named,
    signature_of,
)


class Own(Section):
    function: str = ""


BROKEN = partial(Own.broken, "function")
CODE = """
number = 3

def two(first, second):
    return first

def fails(first):
    raise KeyError(first)

def refuses(first):
    from agentrl.errors import DataError
    raise DataError("the data say so")
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "broken.py").write_text("import no_such_module_here\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (
            "owm.py:two",
            r"cannot be loaded: there is no file .*owm\.py; did you mean 'own\.py'\?",
        ),
        ("own.py:tow", r"cannot be loaded: own\.py has no 'tow'; did you mean 'two'\?"),
        (
            "broken.py:f",
            r"cannot be loaded: .*broken\.py raised when imported: ModuleNotFound",
        ),
        (
            "syntax.py:f",
            r"cannot be loaded: .*syntax\.py raised when imported: SyntaxError",
        ),
        (
            "no.such:f",
            r"cannot be loaded: there is no module 'no' .*; install it, or name a file",
        ),
        ("two", r"cannot be loaded: 'two' names no object: write package\.module:name"),
        (
            "own.py:number",
            r"must be a function or class that takes \(first\), got int; name one",
        ),
    ],
)
def test_what_cannot_be_loaded_names_setting_and_value(
    own: Path, reference: str, told: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^Own\.function='{reference}' {told}"
    ) as caught:
        load_function(reference, own, BROKEN, "(first)")
    assert caught.value.fields == ("Own.function",)


def test_other_arguments_are_refused_with_the_signature(own: Path) -> None:
    two = load_function("own.py:two", own, BROKEN, "(first)")
    check_takes(two, "own.py:two", BROKEN, "(first, second)", 1, 2)
    with pytest.raises(
        ConfigError,
        match=r"must take \(first\), but has the signature \(first, second\) .*'second'",
    ):
        check_takes(two, "own.py:two", BROKEN, "(first)", 1)


def test_an_object_needs_to_be_no_function(own: Path) -> None:
    assert load_named("own.py:number", own, BROKEN) == 3


def test_a_class_that_tells_no_signature_takes_anything() -> None:
    signature_of(dict).bind(1, 2, a=3)


def test_what_it_raises_names_its_line(own: Path) -> None:
    function = load_function("own.py:fails", own, BROKEN, "(first)")
    called = UserFunction(function, int, BROKEN, "own.py:fails")
    with pytest.raises(
        ConfigError,
        match=r"Own\.function='own\.py:fails' raised KeyError: 'x' \(.*own\.py:8\); correct it",
    ) as caught:
        called("x")
    assert isinstance(caught.value.__cause__, KeyError)


def test_its_own_errors_stay_as_they_are(own: Path) -> None:
    function = load_function("own.py:refuses", own, BROKEN, "(first)")
    with pytest.raises(DataError, match=r"^the data say so$"):
        UserFunction(function, int, BROKEN, "own.py:refuses")(1)


@pytest.mark.parametrize(("returns", "named"), [(str, "a str"), (Mapping, "a Mapping")])
def test_another_type_is_named(own: Path, returns: type, named: str) -> None:
    function = load_function("own.py:two", own, BROKEN, "(first, second)")
    called = UserFunction(function, returns, BROKEN, "own.py:two", "credit")
    with pytest.raises(
        ConfigError,
        match=rf"='own\.py:two': its credit must return {named}, got int; return one",
    ):
        called(1, second=2)


def test_it_crosses_processes(own: Path) -> None:
    function = load_function("own.py:two", own, BROKEN, "(first, second)")
    sent = pickle.loads(pickle.dumps(UserFunction(function, int, BROKEN, "own.py:two")))
    assert sent(1, 2) == 1
