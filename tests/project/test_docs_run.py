"""The Python blocks of README.md and docs/*.md run as they stand, and the links between pages lead
somewhere.

The blocks of a page are one program, in order, run in an empty folder that holds ``examples``. What
is not to be run is marked ```text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "AGENTS")),
        *(ROOT / "docs").glob("*.md"),
    ]
)
FILE = re.compile(r"`((?:agentrl|benchmarks|docs|examples|tests)/[\w./-]*\w)/?`")
PLACE = re.compile(r"`((?:\w+/)+(?:\w+\.py|\w*))`")
TOPS = (".", "agentrl")
ANCHOR = re.compile(r"\]\(#([^)]+)\)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def program(page: str) -> str:
    """The page with every line that is not in a Python block made empty, so that line numbers stay
    the page's.
    """
    lines = []
    inside = False
    for line in page.splitlines():
        if line.startswith("```"):
            inside = line.strip() == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


WITH_PYTHON = [page for page in PAGES if program(page.read_text(encoding="utf-8")).strip()]


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    """One process for all pages, since what they import takes longer than what they do."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("page_runner.py"))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.wide
@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in WITH_PYTHON])
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, runner: subprocess.Popen[str]
) -> None:
    script = tmp_path / f"{page.stem.replace('-', '_')}.py"
    script.write_text(program(page.read_text(encoding="utf-8")), encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert runner.stdin is not None
    assert runner.stdout is not None
    print(script, file=runner.stdin, flush=True)
    code = runner.stdout.readline().strip()
    said = script.with_suffix(".log").read_text(encoding="utf-8")
    assert code == "0", f"{page.name} (line numbers are the page's):\n{said}"


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = [
        link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link
    ]

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = FILE.findall(page.read_text(encoding="utf-8"))

    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", ["structure.md", "glossary.md"])
def test_the_packages_that_a_map_names_exist(page: str) -> None:
    rows = [
        line
        for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    named = [name for row in rows for name in PLACE.findall(row)]

    assert named
    assert [
        name for name in named if not any((ROOT / top / name).exists() for top in TOPS)
    ] == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_the_headings_that_a_page_links_to_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert [name for name in ANCHOR.findall(text) if name not in anchors(text)] == []


def anchors(page: str) -> set[str]:
    """What ``#...`` may name within a page."""
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
    }


def test_the_index_names_each_page() -> None:
    named = LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))

    assert (
        sorted(
            {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} - set(named)
        )
        == []
    )


def test_a_block_keeps_its_line_numbers() -> None:
    assert (
        program("text\n```python\nx = 1\n```\n```text\nno\n```\n") == "\n\nx = 1\n\n\n\n\n"
    )
