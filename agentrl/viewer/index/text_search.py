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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store.json_text import from_json
from agentrl.store.trajectories.files import live_texts
from agentrl.types import content_text

Match = tuple[str, float]
"""The id of a record and when it was recorded, which tell it from older ones of the id."""

_KEPT_SEARCHES = 16
_KEPT_MATCHES = 200_000
"""Of all kept searches together; one takes some 200 bytes, and a word may be in all."""
_SHAPE = (
    '[{"text": "VARCHAR", "observed": [{"content": "VARCHAR"}], '
    '"calls": [{"result": {"content": "VARCHAR"}}]}]'
)
"""Where the turns' JSON has texts, for DuckDB."""
_TEXTS = (
    ("t.text", "for t in parsed"),
    ("o.content", "for o in flatten([t.observed for t in parsed])"),
    ("c.result.content", "for c in flatten([t.calls for t in parsed])"),
)
_HALF_A_PAIR = r"\\ud[89a-f]"
"""Half of a surrogate pair, as JSON spells it: DuckDB refuses it, and such turns escape all that is
not ASCII.
"""
_PARTS = '"content":['
"""A content that is a list of parts, not a text."""
_AFTER_ROLE = ',"content":'
_AFTER_VALUE = "|".join(
    (
        "[^:,]",
        *(_AFTER_ROLE[:at] + f"[^{_AFTER_ROLE[at]}]" for at in range(1, len(_AFTER_ROLE))),
    )
)
"""What follows the quotation mark after a text: not the colon that follows a key, and not what
follows the role of a message, since no searched text lies before a ``content``.
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

    def search(
        self, needle: str, shards: Sequence[Path], live: Sequence[Path]
    ) -> list[Match]:
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
        # Equal searches wait here for each other, so that a shard is scanned once.
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
    # a tenth of what the viewer's start costs, and few search
    import duckdb

    # A search costs as much as the texts cost to read. Parsing the turns costs a quarter of that,
    # and looking at each of their texts half: so turns are first searched as they are stored.
    fold = _folds(needle)
    ends = " OR ".join(_has(name, fold) for name in ("prompt", "final_text"))
    within = " OR ".join(
        f"list_bool_or([{_has(text, fold)} {loop}])" for text, loop in _TEXTS
    )
    odd = f"(regexp_matches(turns, $half) OR contains(turns, '{_PARTS}'))"
    # the one-element list has them parsed once, and only where they are looked at
    sql = f"""
        SELECT filename, id, recorded_at, CASE WHEN NOT ({ends}) AND {odd} THEN turns END
        FROM read_parquet($shards, filename = true, hive_partitioning = false)
        WHERE {ends} OR CASE
            WHEN {odd} THEN true
            WHEN regexp_matches(turns, $pattern)
                THEN list_bool_or([{within} for parsed in [json_transform(turns, '{_SHAPE}')]])
            ELSE false END
    """
    values = {
        "shards": [str(path) for path in shards],
        "needle": needle,
        "pattern": _pattern(needle),
        "half": _HALF_A_PAIR,
    }
    try:
        with duckdb.connect() as connection:
            found = connection.execute(sql, values).fetchall()
    except duckdb.Error as error:
        left = [path for path in shards if path.is_file()]
        if len(left) < len(shards):
            # a step was cut down to what is kept
            return _scan(needle, left) if left else []
        raise StoreError(f"the text of trajectories cannot be searched: {error}") from error
    return [
        (name, (trajectory_id, recorded_at))
        for name, trajectory_id, recorded_at, turns in found
        if turns is None or _in_turns(needle, turns)
    ]


def _has(text: str, fold: bool) -> str:
    """The condition that a text of DuckDB has the needle, in any case where ``fold``."""
    return (
        f"regexp_matches({text}, $needle, 'il')" if fold else f"contains({text}, $needle)"
    )


def _folds(needle: str) -> bool:
    return needle == needle.lower()


def _pattern(needle: str) -> str:
    """A regular expression, for RE2 and for Python, that stored turns match which have ``needle``
    in a text.

    It begins with the needle, so that RE2 leaps from one to the next, and leaves out keys and the
    names of roles by what follows them.
    """
    spelled = json.dumps(needle, ensure_ascii=False)[1:-1]
    flags = "i" if _folds(needle) else "s"
    return rf'(?{flags}:{re.escape(spelled)})[A-Za-z0-9_]*(?:[^A-Za-z0-9_"]|"(?:{_AFTER_VALUE}))'


def _scan_live(needle: str, path: Path) -> Iterator[Match]:
    for row in live_texts(path):
        if _has_any(needle, (row["prompt"], row["final_text"])) or _in_turns(
            needle, row["turns"]
        ):
            yield row["id"], row["recorded_at"]


def _in_turns(needle: str, turns: str) -> bool:
    """Whether a text of stored turns has the needle."""
    is_spelled_so = re.search(_HALF_A_PAIR, turns) is None
    if is_spelled_so and re.search(_pattern(needle), turns) is None:
        return False
    return _has_any(needle, _texts_of(turns))


def _has_any(needle: str, texts: Iterable[str]) -> bool:
    fold = _folds(needle)
    return any(needle in (text.lower() if fold else text) for text in texts)


def _texts_of(turns: str) -> Iterator[str]:
    for turn in from_json(turns):
        yield turn["text"]
        for message in turn["observed"]:
            yield content_text(message.get("content"))
        for call in turn["calls"]:
            yield content_text((call["result"] or {}).get("content"))
