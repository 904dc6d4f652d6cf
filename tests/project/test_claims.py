"""Claims: what the README and the pages say, against docs/status.md and the tree, where that can be
checked.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from agentrl.algorithms import ALGORITHMS
from agentrl.cli.main import _COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CODE = re.compile(r"`([^`]+)`")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class Row(NamedTuple):
    """A feature's row of docs/status.md."""

    feature: str
    cpu: str
    gpu: str
    other: str


def tables(page: Path) -> list[list[str]]:
    """The rows of a page's tables, headings among them, cell by cell."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("|") and not line.startswith("|---")
    ]


STATUS = [
    Row(*cells)
    for cells in tables(DOCS / "status.md")
    if len(cells) == 4 and cells[0] != "feature"
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_each_feature_has_one_row_that_says_yes_a_date_or_neither() -> None:
    assert [row for row in STATUS if row.cpu not in ("yes", "–")] == []
    assert [row for row in STATUS if row.gpu != "–" and not DATE.fullmatch(row.gpu)] == []
    assert [name for name, count in Counter(STATUS).items() if count > 1] == []


def test_the_readme_names_nothing_that_nobody_ran() -> None:
    unrun = {
        name
        for row in STATUS
        if (row.cpu, row.gpu) == ("–", "–")
        for name in CODE.findall(row.feature)
    }
    run = {name for row in STATUS if row.cpu == "yes" for name in CODE.findall(row.feature)}

    assert {name for name in unrun - run if name in README} == set()


def test_the_readme_says_of_gpus_what_the_dates_say() -> None:
    (claim,) = re.findall(r"^Alpha: .*?\.$", README, flags=re.MULTILINE | re.DOTALL)

    has_run = any(row.gpu != "–" for row in STATUS)
    assert ("nothing yet on a GPU" in " ".join(claim.split())) != has_run
    assert ("what ran on a GPU has its date" in " ".join(claim.split())) == has_run


def test_each_example_algorithm_and_command_has_a_row() -> None:
    told = (DOCS / "status.md").read_text(encoding="utf-8")
    names = {word for text in CODE.findall(told) for word in re.findall(r"[\w/]+", text)}

    examples = {
        f"examples/{path.parent.name}" for path in ROOT.glob("examples/*/config.yaml")
    }
    assert examples - names == set()
    assert (set(ALGORITHMS) | set(_COMMANDS)) - names == set()


def test_a_table_of_folders_names_each_folder_of_the_package_once() -> None:
    rows = tables(DOCS / "training.md")
    start = rows.index(["folder", "holds"]) + 1
    named = []
    for cells in rows[start:]:
        if len(cells) != 2 or not cells[0].startswith("`"):
            break
        named.append(cells[0].strip("`"))

    training = ROOT / "agentrl" / "training"
    assert sorted(named) == sorted(
        path.parent.name for path in training.glob("*/__init__.py")
    )


def test_the_index_names_a_page_once() -> None:
    pages = [
        page
        for cells in tables(DOCS / "index.md")
        for page in re.findall(r"\(([\w-]+\.md)\)", cells[0])
    ]

    assert [page for page, count in Counter(pages).items() if count > 1] == []


def test_the_roles_that_the_pages_name_are_those_of_the_package() -> None:
    roles = {"actor", "critic", "reference", "reward_model"}
    text = " ".join((DOCS / "controller.md").read_text(encoding="utf-8").split())
    (told,) = re.findall(r"The roles are (.*?)\.", text)

    assert set(CODE.findall(told)) == roles
