"""The page of this folder and the marker ``invariant`` name the same tests, for each statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS / "invariants" / "README.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
MARK = re.compile(r"\bmark\.invariant\b")


def marked(path: Path) -> Iterator[str]:
    """Tests of a file that bear the marker, themselves or in a case of theirs.

    A case may have it from a function of the same file.
    """
    text = path.read_text(encoding="utf-8")
    if not MARK.search(text):
        return
    module = ast.parse(text)
    helpers = {
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("test_")
        and MARK.search(ast.unparse(node))
    }
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            above = " ".join(map(ast.unparse, node.decorator_list))
            if MARK.search(above) or helpers & {*re.findall(r"\w+", above)}:
                yield node.name


def test_there_are_fifteen_statements_each_with_a_test() -> None:
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, 16))
    assert [row for row in ROWS if not NAMED.search(row)] == []


def test_the_tests_that_it_names_are_those_that_bear_the_marker() -> None:
    found = {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("test_*.py")
        for name in marked(path)
    }
    assert found == {*NAMED.findall(PAGE)}
