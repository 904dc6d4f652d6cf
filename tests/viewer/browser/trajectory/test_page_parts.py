"""Pure parts of the trajectory page: Markdown, differences, states, times, addresses."""

from __future__ import annotations

import difflib
import json
import random
from typing import Any

import pytest

from tests.viewer.browser.trajectory.conftest import Call

pytestmark = pytest.mark.browser


def tree(in_module: Call, source: str) -> Any:
    return in_module("parts/markdown_tree.js", "return m.markdownTree(given)", source)


def test_markdown_becomes_nodes(in_module: Call) -> None:
    (paragraph, code) = tree(in_module, "a **b**\n\n```python\nx < 1\n```")
    assert paragraph["type"] == "paragraph"
    assert [child["type"] for child in paragraph["children"]] == ["text", "strong"]
    assert (code["lang"], code["text"]) == ("python", "x < 1")


def test_html_stays_text(in_module: Call) -> None:
    assert tree(in_module, "<script>alert(1)</script>") == [
        {"type": "source", "text": "<script>alert(1)</script>"}
    ]
    (paragraph,) = tree(in_module, "a <b onclick=x>b</b>")
    assert {child["type"] for child in paragraph["children"]} == {"text"}


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("https://example.org/a?b", True),
        ("mailto:a@example.org", True),
        ("javascript:alert(1)", False),
        ("JaVaScRiPt:alert(1)", False),
        ("data:text/html,x", False),
        ("//example.org", False),
        ("file:///etc/passwd", False),
    ],
)
def test_only_links_to_pages_and_mail_are_links(
    in_module: Call, address: str, safe: bool
) -> None:
    ((link,),) = (
        paragraph["children"] for paragraph in tree(in_module, f"[text]({address})")
    )
    assert (link["safe"] == address) if safe else link["safe"] is None


def test_markdown_that_is_too_deep_or_long_is_left_as_text(in_module: Call) -> None:
    assert tree(in_module, ">" * 5000 + "a") is None
    assert tree(in_module, "[" * 5000) is None
    assert tree(in_module, "a" * 50_001) is None
    assert tree(in_module, "-" * 200) == [{"type": "hr"}]


def test_a_line_diff_turns_one_text_into_the_other(in_module: Call) -> None:
    draw = random.Random(3)
    pairs = []
    for _ in range(40):
        before = [draw.choice("abcde") for _ in range(draw.randint(0, 30))]
        after = [line for line in before if draw.random() > 0.2]
        for _ in range(draw.randint(0, 5)):
            after.insert(draw.randint(0, len(after)), draw.choice("abcdef"))
        pairs.append([before, after])
    body = "return given.map(([a, b]) => m.diffItems(a, b))"
    for (before, after), edits in zip(
        pairs, in_module("parts/text_diff.js", body, pairs), strict=True
    ):
        assert [edit["item"] for edit in edits if edit["kind"] != "new"] == before
        assert [edit["item"] for edit in edits if edit["kind"] != "gone"] == after
        same = sum(edit["kind"] == "same" for edit in edits)
        blocks = difflib.SequenceMatcher(
            None, before, after, autojunk=False
        ).get_matching_blocks()
        assert same >= sum(block.size for block in blocks)


def test_texts_without_a_common_line_are_one_replacement(in_module: Call) -> None:
    body = """const a = Array.from({length: 3000}, (_, i) => "a" + i);
        const edits = m.diffItems(a, a.map((line) => line + "x"));
        return [edits.length, edits.filter((edit) => edit.kind === "same").length];"""
    assert in_module("parts/text_diff.js", body) == [6000, 0]


def test_far_equal_lines_are_folded(in_module: Call) -> None:
    lines = [{"kind": "same", "text": str(n)} for n in range(20)]
    lines[10] = {"kind": "new", "text": "x"}
    found = in_module("parts/diff_view.js", "return m.folded(given)", lines)
    assert found[0] == {"kind": "fold", "count": 7}
    assert [line.get("text") for line in found[1:8]] == [
        "7",
        "8",
        "9",
        "x",
        "11",
        "12",
        "13",
    ]
    assert found[8] == {"kind": "fold", "count": 6}


def test_files_are_those_of_the_newest_change_up_to_a_step(in_module: Call) -> None:
    answer = {
        "first_state": {"$blob": {"sha256": "s0"}},
        "turns": [
            {"index": 0, "files": {"a": {"sha256": "1"}, "b": {"sha256": "2"}}},
            {
                "index": 1,
                "state": {"sha256": "s1"},
                "files": {"a": {"sha256": "3"}, "b": None},
            },
            {"index": 2, "files": {}},
        ],
    }
    body = """const steps = m.stepsOf(given);
        const shown = (at) => m.filesAt(steps, at).map(
            (f) => [f.path, f.blob?.sha256 ?? null, f.before?.sha256 ?? null, f.changed]);
        return [steps.map((step) => step.state.sha256), shown(0), shown(1), shown(2), shown(3)];"""
    states, *files = in_module("tabs/state_model.js", body, answer)
    assert states == ["s0", "s0", "s1", "s1"]
    assert files == [
        [],
        [["a", "1", None, True], ["b", "2", None, True]],
        [["a", "3", "1", True], ["b", None, "2", True]],
        [["a", "3", "1", False]],
    ]


def test_rows_of_a_state_may_be_lists_or_words(in_module: Call) -> None:
    body = "return given.map((value) => m.rowsOf(value))"
    given = [
        {"form": "grid", "cells": ["#.", ["ab", 1]]},
        {"form": "table", "columns": ["x", 2], "rows": [[5], 6]},
        {"form": "table", "rows": "no"},
    ]
    assert in_module("tabs/state_model.js", body, given) == [
        {"columns": [], "rows": [["#", "."], ["ab", 1]], "more": 0, "cut": False},
        {"columns": ["x", "2"], "rows": [[5], [6]], "more": 0, "cut": False},
        None,
    ]


def test_a_table_of_millions_is_cut_before_it_is_drawn(in_module: Call) -> None:
    body = """const row = "🎉".repeat(given / 2);
        const long = m.rowsOf({ form: "grid", cells: [row] });
        const many = m.rowsOf({ form: "table", rows: new Array(given).fill(1) });
        return [long.rows[0].length, long.rows[0][0], long.cut, many.rows.length, many.more];"""
    found = in_module("tabs/state_model.js", body, 10_000_000)
    assert found == [100, "🎉", True, 200, 10_000_000 - 200]


@pytest.mark.parametrize(
    ("state", "form"),
    [
        ({"form": "text", "text": "x"}, "text"),
        ({"form": "image", "base64": "AA=="}, "image"),
        ({"form": "table"}, "json"),
        ({"form": "video", "video": "x"}, "json"),
        ({"form": "__proto__"}, "json"),
        ([1], "json"),
        (None, "json"),
    ],
)
def test_a_state_has_a_form_that_it_names_and_holds(
    in_module: Call, state: object, form: str
) -> None:
    assert in_module("tabs/state_model.js", "return m.formOf(given)", state) == form


def test_times_are_bars_after_the_first_start(in_module: Call) -> None:
    result = {"name": "python", "latency_s": 0.5, "started_at": 102.0, "error": None}
    turns = [
        {
            "index": 0,
            "started_at": 100.0,
            "timings": {"step_at_s": 2.0, "step_s": 0.6, "queue_s": 0.25},
            "calls": [{"call": {"name": "python"}, "result": result}],
        }
    ]
    found = in_module("tabs/timeline_model.js", "return m.timelineOf(given)", turns)
    bars = [(bar["row"], bar["start"], bar["length"]) for bar in found["bars"]]
    assert bars == [
        ("waiting", 0, 0.25),
        ("generation", 0.25, 1.75),
        ("environment", 2, 0.6),
        ("tool", 2, 0.5),
    ]
    assert (found["total"], found["known"]) == (2.6, True)


def test_turns_without_a_start_are_drawn_end_to_end(in_module: Call) -> None:
    turns = [{"index": n, "timings": {"decode_s": 1.0}} for n in range(2)]
    found = in_module("tabs/timeline_model.js", "return m.timelineOf(given)", turns)
    assert [bar["start"] for bar in found["bars"]] == [0, 1]
    assert found["known"] is False


@pytest.mark.parametrize(
    ("text", "range_"),
    [
        ("120-140", [120, 140]),
        ("7", [7, 8]),
        ("9-9", [9, 10]),
        ("190-300", [190, 200]),
        ("200-201", None),
        ("x", None),
        (None, None),
    ],
)
def test_token_ranges_of_an_address(
    in_module: Call, text: str | None, range_: list[int] | None
) -> None:
    body = "return m.parseTokens(given ?? undefined, 200)"
    assert in_module("data.js", body, text) == range_


def test_keys_go_round_to_the_next_turn_that_is_wanted(in_module: Call) -> None:
    turns = [{"index": n, "bad": n in (1, 3)} for n in range(5)]
    body = """const next = (from, by) => m.nextTurn(given, from, by, (turn) => turn.bad);
        return [next(-1, 1), next(1, 1), next(3, 1), next(5, -1)];"""
    assert in_module("data.js", body, turns) == [1, 3, 1, 3]
    assert (
        in_module("data.js", "return m.nextTurn(given, 0, 1, () => false)", turns) is None
    )


def test_a_branch_lies_beside_what_it_is_an_alternative_to(in_module: Call) -> None:
    parents = [None, 0, 1, 0, 3, None, 4]
    turns = [{"index": index, "parent": parent} for index, parent in enumerate(parents)]
    # turns 3 and 4 branch after 0, beside 1 and 2; the other agent's turn 5 came after both
    assert in_module("data.js", "return m.rowsOf(given)", turns) == [0, 1, 2, 1, 2, 3, 4]


def test_a_cut_halves_no_character(in_module: Call) -> None:
    assert in_module(
        "parts/long_text.js", "return [m.cutAt('a🎉b', 2), m.cutAt('a🎉b', 3)]"
    ) == [
        1,
        3,
    ]


def test_labels_are_words(in_module: Call) -> None:
    assert in_module("notes.js", "return m.labelsOf(given)", " good,bad good  x ") == [
        "good",
        "bad",
        "x",
    ]


def test_who_learned_of_an_episode_is_named_once_the_newest_first(in_module: Call) -> None:
    annotations = [
        {"learner": "actor", "step": 3, "pass_index": 0},
        {"learner": "actor", "step": 3, "pass_index": 1},
        {"learner": "critic", "step": 4},
        {"values": {}},
    ]
    body = "return m.learnedOf(given).map(({ label }) => label)"
    assert in_module("data.js", body, annotations) == [
        "critic in step 4",
        "actor in step 3",
    ]


def test_short_lists_of_a_state_take_a_line(in_module: Call) -> None:
    state = {"rows": [[1, 2], ["a", None]], "long": ["x" * 60, "y" * 60], "n": 1}
    text = in_module("tabs/state_model.js", "return m.prettyJson(given)", state)

    assert json.loads(text) == state
    assert text.splitlines()[:4] == ["{", '  "rows": [', "    [1,2],", '    ["a",null]']


def test_a_state_that_is_nested_without_end_is_cut(in_module: Call) -> None:
    body = "return m.prettyJson(JSON.parse('['.repeat(given) + '1, {}' + ']'.repeat(given))).length"
    assert in_module("tabs/state_model.js", body, 100_000) < 100_000


def test_a_note_on_an_older_record_says_so(in_module: Call) -> None:
    body = """
        const { render } = await import("/vendor/preact.js");
        const { html } = await import("/lib/html.js");
        const place = document.createElementNS("http://www.w3.org/1999/xhtml", "div");
        render(html`<${m.Notes} run="r" id="0-0-0" notes=${given} recordedAt=${2.5} />`, place);
        return [...place.querySelectorAll("article")].map((note) => note.textContent);
    """
    note = {
        "id": "a",
        "labels": [],
        "text": "x",
        "user": "ann",
        "time": 3,
        "tokens": [1, 2],
    }
    records = [{"recorded_at": 2.5}, {"recorded_at": 1.5}, {}]
    notes = [{**note, "id": str(number), **one} for number, one in enumerate(records)]
    told = [
        "played this episode again" in text for text in in_module("notes.js", body, notes)
    ]
    assert told == [False, True, False]
