"""The search benchmark: what it reads as English, its judgement of answers, all of it in small."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from benchmarks.passages import english
from benchmarks.passages.packages import NoPackagesError, unpack
from benchmarks.passages.peer import is_equal
from benchmarks.search import main

pytestmark = pytest.mark.tooling

PROSE = "The house is the oldest of the town, and nobody knows who built it for the count."


def read(path: Path, text: str) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode()
    )
    return list(english.paragraphs(path))


def test_prose_is_read_from_each_kind_of_file(tmp_path: Path) -> None:
    page = f"<head><title>It is not of the text.</title></head><p>{PROSE}<td>x<script>a</script>"
    assert read(tmp_path / "a.html", page.replace("built", "b&#117;ilt")) == [PROSE]
    manual = (
        f'.TH CAT 1\n.\\" The line is a comment of the authors.\n{PROSE}\n.PP\n\\fBls\\fR\n'
    )
    assert read(tmp_path / "man1" / "cat.1.gz", manual.replace("The", "\\fIThe\\fP")) == [
        PROSE
    ]
    assert read(
        tmp_path / "b.txt.gz", f"{PROSE}\n\nint main() {{ return f(0, 1, 2); }}"
    ) == [PROSE]
    assert read(tmp_path / "c.png", PROSE) == []


def test_passages_end_with_a_paragraph_where_they_can() -> None:
    sizes = [len(text.split()) for text in english.cut(["a " * 60, "b " * 60, "c " * 450])]
    assert sizes == [120, 100, 100, 100, 150]
    assert list(english.cut(["a " * 49])) == []


@pytest.mark.parametrize(
    ("found", "own", "best", "equal"),
    [
        ([("a", 2.0), ("b", 1.0)], [2.0, 1.0], [2.0, 1.0], True),
        ([("a", 2.0), ("a", 2.0)], [2.0, 2.0], [2.0, 2.0], False),
        ([("a", 2.0)], [2.0], [2.0, 1.0], False),
        ([("a", 2.0), ("b", 1.0)], [2.0, 0.5], [2.0, 1.0], False),
        ([("b", 1.0), ("c", 1.0)], [1.0, 1.0], [2.0, 1.0], False),
    ],
    ids=["equal", "one twice", "one missing", "another's score", "not the best"],
)
def test_an_answer_is_judged(
    found: list[tuple[str, float]], own: list[float], best: list[float], equal: bool
) -> None:
    assert is_equal(found, own, best) is equal


def test_a_machine_without_debians_tools_is_told_from_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPackagesError, match="apt-get and dpkg-deb"):
        unpack("manpages", tmp_path / "texts")
    assert main(["--packages", "manpages", "--texts", str(tmp_path / "texts")]) == 4


def test_every_figure_comes_out(tmp_path: Path) -> None:
    rng = random.Random(0)
    names = [f"w{n}" for n in range(500)]
    own = tmp_path / "texts" / "own"
    own.mkdir(parents=True)
    for number in range(40):
        picked = rng.choices(
            ["the", "of", "and", *names], weights=[400] * 3 + [1] * 500, k=120
        )
        (own / f"{number}.txt").write_text(" ".join(picked))
    told = tmp_path / "figures.json"
    size = ["--passages", "40", "--queries", "25", "--packages", "own", "--json", str(told)]
    assert main([*size, "--texts", str(own.parent)]) in (0, 1)  # 1: slow under load
    figures = {row["name"]: row for row in json.loads(told.read_text())}
    assert figures["passages"]["value"] == 40
    assert figures["queries whose top ten are bm25s's own"]["value"] == 100
    assert figures["served: queries with the same answer"]["value"] == 100
    assert sum(row["met"] is not None for row in figures.values()) == 8
