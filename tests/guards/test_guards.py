"""The guards: what is foreign is bounded in size, depth, nodes and time."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl.envs
import agentrl.guards
from agentrl.envs.rewards.shape import json_schema
from agentrl.guards.addresses import is_public
from agentrl.guards.html_text import html_text
from agentrl.guards.parsing import MAX_DEPTH, JSONFault, parse_json, parse_yaml, read_json
from agentrl.guards.regular_file import NotRegularError, open_regular, read_regular
from agentrl.guards.secret_mask import beginning, ending
from tests.envs.rewards.episodes import episode


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "more than 128 levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "more than 128 levels"),
        ("[" * 10**6, "more than 128 levels"),
        ("[1,1,1,1]", "at most 4 values"),
        ("[1, 2, 3, 4, 5, 6, 7, 8, 9]", "at most 20 bytes"),
        (b'"\xff"', "utf-8"),
    ],
)
def test_json_is_bounded(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text, max_nodes=4, max_bytes=20 if "9]" in str(text) else 2**20)


def test_brackets_in_texts_are_no_levels() -> None:
    value = {"a": "[" * 500 + '"', "b": [[1]]}
    assert parse_json('{"a": "' + "[" * 500 + '\\"", "b": [[1]]}', max_nodes=5) == value
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None


def test_a_string_that_nothing_closes_costs_linear_time() -> None:
    text = "[" * MAX_DEPTH + '["' + '\\"' * 2**15
    started = time.process_time()
    for faulty, why in ((text, "128 levels"), (text[MAX_DEPTH:], "at most 1 values")):
        with pytest.raises(ValueError, match=why):
            parse_json(faulty, max_nodes=1)
    assert time.process_time() - started < 2  # quadratic: a minute


NUMBERS = st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-400, 400))
WORDS = st.sampled_from(
    ["true", "NaN", "-Infinity", '"\\ud800"', '"\\ud83d\\ude00"', '{"é": 1}']
)


@given(st.lists(NUMBERS | WORDS, max_size=3))
def test_what_is_read_strictly_can_be_written_again(values: list[str]) -> None:
    text = f"[{', '.join(values)}]"
    try:
        value, _ = read_json(text, 0)
    except JSONFault:
        return
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"a: !!python/object:os.system x",
        b"[" * 100_000,
        b"- " * 2000,
        b"a: &a {b: *a}",
        b"a: &a [1,1,1,1,1,1,1,1]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 8))
            for c in b"bcdefgh"
        ),
        b"x" * (2**19 + 1),
        b"\xff",
    ],
)
def test_yaml_is_bounded(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_yaml(text)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "::127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:a00:1::",
        ),
        *(
            "2001:0:a00::1",
            "fec0::1",
            "3fff::1",
            "5f00::1",
            "4000::1",
            "192.88.99.1",
            "fd00::1",
        ),
        *(
            "2001:db8::1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::",
        ),
    ],
)
def test_what_stands_for_another_address_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_a_page_is_read_as_a_browser_shows_it() -> None:
    page = (
        "<title>T &amp; U</title><style>p{}</style><script>if (a<b) x='</p>'</SCRIPT >"
        "<p class='a>b' x=don't>Hi <b>there</b>, 1 < 2 &#65;</p><div>x<br>y</div><!-- no -->"
        "<noscript>not <i>this</i></noscript>end<a href='x"
    )
    assert html_text(page) == "T & U\nHi there, 1 < 2 A\n\nx\ny\nend"
    with pytest.raises(TimeoutError, match="cannot be read within 0 s"):
        html_text("<p>x", seconds=0)


def test_an_image_that_closes_itself_hides_nothing() -> None:
    page = "a<svg/>b<svg class='x' />c<svg><path d='M'/>no<svg/>no</svg>d<template/>no"
    assert html_text(page) == "abcd"


PUMPS = (
    "<a ",
    "<a b='",
    '<a b="',
    "<!--",
    "<!",
    "</",
    "<script>",
    "</script",
    "&#9",
    "<svg>",
    "<a =",
)


@pytest.mark.parametrize("pump", PUMPS)
def test_a_page_costs_linear_time(pump: str) -> None:
    started = time.process_time()
    html_text(pump * (2**18 // len(pump)))
    assert time.process_time() - started < 2  # quadratic: minutes


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    fifo, link, zero, place = (
        tmp_path / name for name in ("fifo", "link", "zero", "socket")
    )
    regular = tmp_path / "file"
    regular.write_bytes(b"12345")
    os.mkfifo(fifo)
    link.symlink_to(regular)
    zero.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        for path in (fifo, link, zero, place, tmp_path):
            with pytest.raises(NotRegularError, match=r"it is a .*, and a file is needed"):
                open_regular(path)
    assert read_regular(link, follow=True) == b"12345"
    with pytest.raises(NotRegularError, match="a device"):
        read_regular(zero, follow=True)
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(regular, max_bytes=4)


@pytest.mark.parametrize("pattern", [r"^(\w+\s?)+$", r"^(a|aa)+$"])
def test_a_schema_whose_pattern_backtracks_scores_0_within_its_second(pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    started = time.monotonic()
    assert json_schema(episode('{"a": "' + "a" * 80 + '!"}'), schema=schema).value == 0.0
    assert time.monotonic() - started < 30


def patterns() -> dict[str, re.Pattern[str]]:
    """Every regular expression by which a reward or a guard searches what a policy says."""
    found = {}
    for package in (agentrl.envs, agentrl.guards):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                    found[f"{module.name}.{name}"] = value
    return found


REPEATED = (
    "\n",
    " ",
    "a",
    "1",
    "1,111",
    "```\n",
    "answer:",
    "\\",
    '"',
    '\\"',
    "<",
    "<think>",
    "{",
    "=",
    "call(",
)
BEFORE = ("", "answer:", "```json\n", "<a ", "score", "[x(", '"', "1")
SIZE = 20_000


@pytest.mark.parametrize("name", sorted(patterns()))
def test_a_pattern_on_foreign_text_costs_linear_time(name: str) -> None:
    pattern = patterns()[name]
    for before in BEFORE:
        for repeated in REPEATED:
            for after in ("", "\x00"):
                text = before + repeated * (SIZE // len(repeated)) + after
                started = time.process_time()
                sum(1 for _ in pattern.finditer(text))
                assert time.process_time() - started < 1.5, (before, repeated)


SECRET = "sk-0123456789"


@pytest.mark.parametrize("before", range(12, 34))
def test_of_a_secret_that_a_cut_would_divide_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    text = "." * before + SECRET + "." * 30
    for cut in (beginning(text, 30), ending(text[::-1].replace(SECRET[::-1], SECRET), 30)):
        assert not any(SECRET[:length] in cut for length in range(4, 14)), cut
        assert not any(SECRET[-length:] in cut for length in range(4, 14)), cut
        assert len(cut) == 31


def test_what_fits_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    # whoever stores it masks it, and who is told it here may read it
    assert beginning(SECRET, len(SECRET)) == ending(SECRET, len(SECRET)) == SECRET
    assert (beginning("abcd", 3), ending("abcd", 3)) == ("abc…", "…bcd")
