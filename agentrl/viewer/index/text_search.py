"""Text search: finds text in trajectories by a scan of their files.

A scan needs nothing built and misses nothing new: DuckDB reads the text columns of all sealed
shards on every core, live files are read line by line. What a search found in a sealed shard is
kept until ``store.keep`` shrinks one; the next search for the same reads new shards alone.

What is searched: the prompt, the final text, what each turn wrote and observed, and tool results.
Text in lower case is found in any case; with an upper-case letter, as it is written.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from agentrl.errors import StoreError
from agentrl.store.json_text import from_json
from agentrl.store.trajectories.live_record import live_texts

Match = tuple[str, float]
"""The id of a record and when it was recorded, which tell it from older ones of the id."""

_KEPT_SEARCHES = 16
_TURN = """[{"text": "VARCHAR", "observed": [{"content": "VARCHAR"}],
"calls": [{"result": {"content": "VARCHAR"}}]}]"""
_TEXTS = f"""array_to_string(list_transform(json_transform(turns, '{_TURN}'), lambda turn:
concat_ws(
    chr(10), turn.text,
    array_to_string(list_transform(turn.observed, lambda one: one.content), chr(10)),
    array_to_string(list_transform(turn.calls, lambda one: one.result.content), chr(10))
)), chr(10))"""
"""All texts of the turns, parsed once."""
_MANY = 400
"""Shards in one statement of DuckDB; bounds what a shard that vanished costs."""


@dataclass(slots=True)
class _Found:
    """What a search found in sealed shards."""

    matches: dict[Path, list[Match]] = field(default_factory=dict)
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
            while len(self._found) > _KEPT_SEARCHES:
                self._found.popitem(last=False)
        with own.lock:
            new = [path for path in shards if path not in own.matches]
            for start in range(0, len(new), _MANY):
                part = new[start : start + _MANY]
                found: dict[Path, list[Match]] = {path: [] for path in part}
                for name, match in _scan(needle, part):
                    found[Path(name)].append(match)
                own.matches |= found
            present = set(shards)
            sealed = [
                match
                for path, matches in own.matches.items()
                if path in present
                for match in matches
            ]
        return sealed + [match for path in live for match in _scan_live(needle, path)]

    def forget(self) -> None:
        """Forget what was found: shards were rewritten."""
        with self._lock:
            self._found.clear()


def _scan(needle: str, shards: Sequence[Path]) -> list[tuple[str, Match]]:
    # the turns are JSON: first the text as JSON spells it, then, where that occurs, the very texts
    escaped = json.dumps(needle, ensure_ascii=False)[1:-1]
    matches = "regexp_matches({}, ${}, 'il')" if needle == needle.lower() else "contains({}, ${})"
    sql = f"""
        SELECT filename, id, recorded_at
        FROM read_parquet($shards, filename = true, hive_partitioning = false)
        WHERE {matches.format("prompt", "needle")}
           OR {matches.format("final_text", "needle")}
           OR CASE WHEN {matches.format("turns", "escaped")}
              THEN {matches.format(_TEXTS, "needle")} ELSE false END
    """
    values = {"shards": [str(path) for path in shards], "needle": needle, "escaped": escaped}
    try:
        with duckdb.connect() as connection:
            found = connection.execute(sql, values).fetchall()
    except duckdb.Error as error:
        left = [path for path in shards if path.is_file()]
        if len(left) < len(shards):  # a step was cut down to what is kept
            return _scan(needle, left) if left else []
        raise StoreError(f"the text of trajectories cannot be searched: {error}") from error
    return [(name, (trajectory_id, recorded_at)) for name, trajectory_id, recorded_at in found]


def _scan_live(needle: str, path: Path) -> Iterator[Match]:
    folds = needle == needle.lower()
    # the turns are JSON, so that a text is first looked for as JSON spells it
    escaped = json.dumps(needle, ensure_ascii=False)[1:-1]
    for row in live_texts(path):
        stored = (row["prompt"], row["final_text"], row["turns"])
        looked = [text.lower() if folds else text for text in stored]
        if any(spelling in text for text in looked for spelling in (needle, escaped)) and any(
            needle in (text.lower() if folds else text) for text in texts_of(row)
        ):
            yield row["id"], row["recorded_at"]


def texts_of(row: dict[str, Any]) -> Iterator[str]:
    """The texts of a stored row that a search looks through."""
    yield row["prompt"]
    yield row["final_text"]
    for turn in from_json(row["turns"]):
        yield turn["text"]
        for message in turn["observed"]:
            content = message.get("content") or ""
            yield content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        for call in turn["calls"]:
            yield (call["result"] or {}).get("content", "")
