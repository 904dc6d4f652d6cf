"""The table of this folder names tests that exist, for each of the fifteen statements."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROWS = [
    line
    for line in (TESTS / "invariants" / "README.md").read_text().splitlines()
    if re.match(r"\| \d+ \|", line)
]


def test_there_are_fifteen_statements() -> None:
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, 16))


def test_every_test_that_it_names_exists() -> None:
    for row in ROWS:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, name in named:
            assert f"def {name}(" in (TESTS / path).read_text(), f"{path}::{name}"
