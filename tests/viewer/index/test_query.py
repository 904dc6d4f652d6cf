"""The query language: what it holds for, and what it refuses, by position."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.viewer.index import QueryError, parse_query, quoted
from agentrl.viewer.index.fields import FIELDS, Field, found_field, in_sql, joined

Rows = dict[str, dict[str, Any]]

ROWS: Rows = {
    "good": {
        "env": "code",
        "stage": "rl",
        "status": "terminated",
        "reward": 1.0,
        "reward.correct": 1.0,
        "step": 10,
        "tool_errors": 0,
        "tokens": 12_000,
        "tool": joined(["python", "search"]),
        "note": joined(["nice find"]),
        "label": "",
    },
    "bad": {
        "env": "code",
        "stage": "rl",
        "status": "truncated",
        "reward": 0.0,
        "reward.correct": 0.0,
        "version": 5,
        "staleness": 2,
        "error": joined(["timeout"]),
        "step": 11,
        "tool_errors": 3,
        "tokens": 500,
        "tool": joined(["python"]),
        "label": "code/before/greedy",
    },
    "lost": {
        "env": "maths",
        "stage": "sft",
        "status": "failed",
        "reason": "engine",
        "reward": None,
        "step": 20,
        "label": "it's [odd]?",
        "drop": "stale",
    },
}


def fields_of(*found: str) -> dict[str, Field]:
    """The fields of a run that names these itself."""
    own = [field for name in found if (field := found_field(name)) is not None]
    return {**FIELDS, **{field.name: field for field in own}}


@pytest.fixture
def matching() -> Callable[[str], list[str]]:
    """The names of ``ROWS`` that a query holds for, asked of SQLite."""
    database = sqlite3.connect(":memory:")
    fields = fields_of("reward.correct", "reward.none")
    columns = ", ".join(map(in_sql, fields))
    database.execute(f"CREATE TABLE trajectories (key INTEGER PRIMARY KEY, {columns})")
    database.execute("CREATE TABLE text_match (needle, trajectory)")
    database.execute("INSERT INTO text_match VALUES ('No such file', 2)")
    empty = {
        name: None if own.nullable else 0 if own.is_number else ""
        for name, own in fields.items()
    }
    for name, own in ROWS.items():
        row = {**empty, "id": name, **own}
        database.execute(
            f"INSERT INTO trajectories ({', '.join(map(in_sql, row))}) "
            f"VALUES ({', '.join('?' * len(row))})",
            tuple(row.values()),
        )

    def ask(text: str) -> list[str]:
        query = parse_query(text, fields)
        sql = f"SELECT id FROM trajectories WHERE {query.sql} ORDER BY key"
        return [name for (name,) in database.execute(sql, query.parameters)]

    return ask


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["good", "bad", "lost"]),
        ("env:code", ["good", "bad"]),
        ("env:code stage:rl reward<0.5", ["bad"]),
        ("env=code and reward>=1", ["good"]),
        ("status:failed,truncated", ["bad", "lost"]),
        ("-status:failed", ["good", "bad"]),
        ("-reward<0.5", ["good", "lost"]),  # what has no reward is not below
        ("env!=code", ["lost"]),
        ("reward:none", ["lost"]),
        ("reward:any", ["good", "bad"]),
        ("note:any", ["good"]),
        ('note:"nice find"', ["good"]),
        ("tool:search", ["good"]),
        ("tool:py*", ["good", "bad"]),
        ("tool:pytho", []),
        ("step:10..11", ["good", "bad"]),
        ("step:11..", ["bad", "lost"]),
        ("step:..10", ["good"]),
        ("tokens>=12k", ["good"]),
        ("tool_errors>=2", ["bad"]),
        ("reward.correct:0.5..1", ["good"]),
        ("reward.none:any", []),
        ("version<=6", ["bad"]),
        ("staleness>=2", ["bad"]),
        ("staleness:none", ["good", "lost"]),
        ("error:timeout", ["bad"]),
        ("label:code/*", ["bad"]),
        ('label:"it\'s [odd]?"', ["lost"]),
        ("label:it's*[odd]*", ["lost"]),
        ("label:none", ["good"]),
        ("drop:stale or tool:search", ["good", "lost"]),
        ("env:code (reward:1 or step:11)", ["good", "bad"]),
        ("env:code -(reward:1 or step:11)", []),
        ('text:"No such file"', ["bad"]),
        ('env:code -"No such file"', ["good"]),
        ("id:good", ["good"]),
        ("id:g*", ["good"]),
    ],
)
def test_a_query_holds_for(
    matching: Callable[[str], list[str]], query: str, names: list[str]
) -> None:
    assert matching(query) == names


@pytest.mark.parametrize(
    ("query", "position", "found", "remedy"),
    [
        ("statsu:x", 1, "statsu:x", "did you mean 'status'?"),
        ("env:code rewrd<1", 10, "rewrd<1", "did you mean 'reward'?"),
        ("status:terminatd", 8, "terminatd", "did you mean 'terminated'?"),
        ("step:ten", 6, "ten", "step:10..20"),
        # one name each
        ("num_tokens>5", 1, "num_tokens>5", "did you mean 'tokens'?"),
        ("status_reason:x", 1, "status_reason:x", "did you mean 'reason'?"),
        ("info.retok_frac>0", 1, "info.retok_frac>0", "did you mean 'retok_frac'?"),
        ("annotation.credit>0", 1, "annotation.credit", "did you mean 'credit'?"),
        ("error:timout", 7, "timout", "did you mean 'timeout'?"),
        ("reward.corect>0", 1, "reward.corect>0", "did you mean 'reward.correct'?"),
        ("prompt:x", 1, "prompt:x", "text:WORD"),
        ("(env:code", 1, "(", "add ')'"),
        ("env:code)", 9, ")", "remove it"),
        ("env:code or", 12, "", "such as"),
        ("or env:code", 1, "or", "both sides"),
        ('env:"code', 5, '"code', 'add a closing "'),
        ("env:", 5, "", "such as"),
        ("- env:code", 2, " ", "-status:failed"),
        ("env>3", 4, ">3", "env:VALUE"),
        ("tool:a,,b", 6, "a,,b", "remove the comma"),
        ('""', 1, "", "No such file"),
        ("http://example.com", 1, "http://example.com", "put it in quotes"),
        ("(" * 60, 51, "", "nest 50 deep"),
        ("a" * 2001, 2001, "2001 characters", "shorten"),
    ],
)
def test_a_query_that_is_none_says_where_and_what(
    query: str, position: int, found: str, remedy: str
) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(query, fields_of("reward.correct"))
    error = caught.value
    assert error.position == position
    assert error.found.startswith(found[:10])
    assert remedy in str(error)


@given(st.text(max_size=60))
def test_any_text_is_a_query_that_sqlite_takes_or_an_error(text: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute(f"CREATE TABLE trajectories (key, {', '.join(map(in_sql, FIELDS))})")
    database.execute("CREATE TABLE text_match (needle, trajectory)")
    try:
        query = parse_query(text)
    except QueryError:
        return
    sql = f"SELECT 1 FROM trajectories WHERE {query.sql}"
    assert database.execute(sql, query.parameters).fetchall() == []


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_any_value_can_be_quoted_and_is_a_parameter(value: str) -> None:
    query = parse_query(f"task:{quoted(value)}")
    assert query.parameters == (value,)
    assert query.sql == '("task" = ?)'
