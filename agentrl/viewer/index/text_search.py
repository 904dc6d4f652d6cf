"""Text search: finds text in trajectories by a scan of their files.

A scan needs nothing built and misses nothing new: DuckDB reads the text columns of all sealed
shards on every core, live files are read line by line. What a search found in a sealed shard is
kept until ``store.keep`` shrinks one; the next search for the same reads new shards alone.

What is searched: the prompt, the final text, what each turn wrote and observed, and tool results.
Text in lower case is found in any case; with an upper-case letter, as it is written.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.trajectories.live_record import live_texts

Match = tuple[str, float]
"""The id of a record and when it was recorded, which tell it from older ones of the id."""

_KEPT_SEARCHES = 16
_KEPT_MATCHES = 200_000
"""Of all kept searches together; one takes some 200 bytes, and a word may be in all."""
_TEXT_PATHS = ("$[*].text", "$[*].observed[*].content", "$[*].calls[*].result.content")
"""Where the turns' JSON has texts; each is looked through where those before it lack the needle."""
_HALF_A_PAIR = r"\\ud[89a-f]"
"""Half of a surrogate pair, as JSON spells it: DuckDB refuses it, and such turns escape all that is
not ASCII.
"""
_MANY = 400
"""Shards in one statement of DuckDB; bounds what a shard that vanished costs."""


@dataclass(slots=True)
class _Found:
    """What a search found in sealed shards."""

    matches: dict[Path, list[Match]] = field(default_factory=dict)
    size: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class TextSearch:
    """Searches of one run. Safe to use from several threads; equal searches wait for each other."""

    def __init__(self) -> None:
        # guards the order and membership of _found; the lock of a search guards its matches
        self._lock = threading.Lock()
        self._found: OrderedDict[str, _Found] = OrderedDict()

    def search(self, needle: str, shards: Sequence[Path], live: Sequence[Path]) -> list[Match]:
        """The records that have the text.

        Args:
            needle: what to find.
            shards: all sealed shards that can be read.
            live: the lines of all live files.

        Raises:
            StoreError: a shard cannot be read.
        """
        with self._lock:
            own = self._found.setdefault(needle, _Found())
            self._found.move_to_end(needle)
        with own.lock:
            new = [path for path in shards if path not in own.matches]
            for start in range(0, len(new), _MANY):
                part = new[start : start + _MANY]
                found: dict[Path, list[Match]] = {path: [] for path in part}
                for name, match in _scan(needle, part):
                    found[Path(name)].append(match)
                own.matches |= found
                own.size += sum(map(len, found.values()))
            present = set(shards)
            sealed = [
                match
                for path, matches in own.matches.items()
                if path in present
                for match in matches
            ]
        self._drop_oldest()
        return sealed + [match for path in live for match in _scan_live(needle, path)]

    def _drop_oldest(self) -> None:
        """Keeps no more than what memory is meant for it."""
        with self._lock:
            size = sum(one.size for one in self._found.values())
            while len(self._found) > 1 and (
                len(self._found) > _KEPT_SEARCHES or size > _KEPT_MATCHES
            ):
                size -= self._found.popitem(last=False)[1].size

    def forget(self) -> None:
        """Forget what was found: shards were rewritten."""
        with self._lock:
            self._found.clear()


def _scan(needle: str, shards: Sequence[Path]) -> list[tuple[str, Match]]:
    import duckdb  # a tenth of what the viewer's start costs, and few search

    # A search costs as much as the texts cost to read, and parsing the turns that much again. So
    # turns are first searched as they are stored; only those that have the needle outside of the
    # format's keys are parsed, and of them one kind of text at a time.
    fold = _folds(needle)
    ends = " OR ".join(_has(name, "needle", fold) for name in ("prompt", "final_text"))
    texts = [f"json_extract(turns, '{path}')::VARCHAR" for path in _TEXT_PATHS]
    parsed = " ".join(
        f"WHEN regexp_matches({text}, $pattern) AND regexp_matches({text}, $exact) THEN true"
        for text in texts
    )
    sql = f"""
        SELECT filename, id, recorded_at,
            CASE WHEN NOT ({ends}) AND regexp_matches(turns, $half) THEN turns END
        FROM read_parquet($shards, filename = true, hive_partitioning = false)
        WHERE {ends} OR CASE
            WHEN regexp_matches(turns, $half) THEN true
            WHEN regexp_matches(turns, $pattern) THEN CASE {parsed} ELSE false END
            ELSE false END
    """
    pattern, exact = _patterns(needle)
    values = {
        "shards": [str(path) for path in shards],
        "needle": needle,
        "pattern": pattern,
        "exact": exact,
        "half": _HALF_A_PAIR,
    }
    try:
        with duckdb.connect() as connection:
            found = connection.execute(sql, values).fetchall()
    except duckdb.Error as error:
        left = [path for path in shards if path.is_file()]
        if len(left) < len(shards):  # a step was cut down to what is kept
            return _scan(needle, left) if left else []
        raise StoreError(f"the text of trajectories cannot be searched: {error}") from error
    return [
        (name, (trajectory_id, recorded_at))
        for name, trajectory_id, recorded_at, turns in found
        if turns is None or _in_turns(pattern, exact, turns)
    ]


def _has(column: str, parameter: str, fold: bool) -> str:
    """The condition that a text has a parameter's, in any case where ``fold``."""
    return (
        f"regexp_matches({column}, ${parameter}, 'il')"
        if fold
        else f"contains({column}, ${parameter})"
    )


def _folds(needle: str) -> bool:
    return needle == needle.lower()


def _patterns(needle: str) -> tuple[str, str]:
    """Regular expressions, for RE2 and for Python, of ``needle`` in a text of JSON.

    Returns:
        One that RE2 is quick with, since it begins with the needle and so leaps from one to the
        next: it leaves out keys, which go on to a quotation mark and a colon. And one that needs
        every character from the first on: it leaves out the letters of an escape.
    """
    spelled = json.dumps(needle, ensure_ascii=False)[1:-1]
    # DuckDB spells \\u001b with a capital B
    literal = re.sub(r"\\\\u00[01][0-9a-f]", lambda code: f"(?i:{code[0]})", re.escape(spelled))
    flags = "i" if _folds(needle) else "s"
    pattern = rf'(?{flags}:{literal}[A-Za-z0-9_]*(?:[^A-Za-z0-9_"]|"[^:]))'
    return pattern, rf"^(?:[^\\]|\\[^u]|\\u[0-9A-Fa-f]{{4}})*?{pattern}"


def _scan_live(needle: str, path: Path) -> Iterator[Match]:
    fold = _folds(needle)
    pattern, exact = _patterns(needle)
    for row in live_texts(path):
        ends = (row["prompt"], row["final_text"])
        if any(needle in (text.lower() if fold else text) for text in ends) or _in_turns(
            pattern, exact, row["turns"]
        ):
            yield row["id"], row["recorded_at"]


def _in_turns(pattern: str, exact: str, turns: str) -> bool:
    """Whether a text of stored turns has what the patterns are for."""
    is_spelled_so = re.search(_HALF_A_PAIR, turns) is None
    if is_spelled_so and re.search(pattern, turns) is None:
        return False
    texts = json.dumps(_texts_of(turns), ensure_ascii=False)
    return re.search(pattern, texts) is not None and re.search(exact, texts) is not None


def _texts_of(turns: str) -> list[Any]:
    found: list[Any] = []
    for turn in json.loads(turns):
        found.append(turn["text"])
        found += [message.get("content") for message in turn["observed"]]
        found += [(call["result"] or {}).get("content") for call in turn["calls"]]
    return found
