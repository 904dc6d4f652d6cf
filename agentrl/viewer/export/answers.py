"""Answers: what the viewer would answer of some trajectories, redacted and packed.

A match in the text of a sequence takes every token that has a part in it, wherever the tokens were
cut. A taken token has the id -1.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError, DataError, StoreError
from agentrl.store.json_text import to_json
from agentrl.viewer.analysis.side_by_side import task_view
from agentrl.viewer.analysis.stored_rows import beginning, whole_text
from agentrl.viewer.index.fields import TEXTS
from agentrl.viewer.pieces import TokenPieces, hiding, taken_tokens
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.viewer_error import ViewerError
from agentrl.viewer.views.comparisons import group_of_rows
from agentrl.viewer.views.metrics_view import metrics_view
from agentrl.viewer.views.run_view import fields_view, overview, run_row, run_view
from agentrl.viewer.views.token_view import rendered_view, token_view
from agentrl.viewer.views.trajectory_view import trajectory_view
from agentrl.viewer.wire import PackedArray, data_url, image_type

MARK = "█████"
"""What stands for a match in a text."""


class Redaction:
    """Regular expressions of what must not leave.

    Args:
        patterns: as Python's ``re`` has them.

    Raises:
        ConfigError: one is none, or matches nothing or the mark itself.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns: list[re.Pattern[str]] = []
        for pattern in patterns:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"--redact must be a regular expression, got {pattern!r}: {error}"
                ) from error
            if compiled.search("") or compiled.search(MARK):
                raise ConfigError(
                    f"--redact must match the text that is to go and nothing else, and {pattern!r} "
                    f"also matches {'nothing' if compiled.search('') else MARK}; narrow it"
                )
            self._patterns.append(compiled)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def text(self, text: str) -> str:
        """``text`` with a mark for each match."""
        for pattern in self._patterns:
            text = pattern.sub(MARK, text)
        return text

    def json(self, value: Any) -> Any:
        """A value as JSON whose strings, names and integers are free of matches; packed arrays
        stay as they are.
        """
        if isinstance(value, PackedArray | float | bool | None):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.json(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        # A number may be what must not leave, such as one of a telephone.
        if isinstance(value, int):
            return value if self.text(str(value)) == str(value) else MARK
        # an image, or what else the store has a mark for
        return self.json(json.loads(to_json(value)))

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the index whose texts are free of matches; its numbers are still to be counted
        with.
        """
        texts = {name: own for name, own in row.items() if isinstance(own, str | list)}
        return {**row, **{name: self.json(own) for name, own in texts.items()}}

    def data(self, data: bytes) -> bytes | None:
        """A blob whose text is free of matches; None where it is no text and has one."""
        try:
            return self.text(data.decode()).encode()
        except UnicodeDecodeError:
            found = self.text(data.decode("latin-1")) != data.decode("latin-1")
            return None if found else data

    def tokens(self, row: StoredRow, pieces: TokenPieces) -> StoredRow:
        """A trajectory without the ids whose text matches, and without alternatives: one of them
        and the tokens around it may spell a match that was never sampled.

        Raises:
            DataError: a match is left.
        """
        kept = hiding(row, taken_tokens(row, pieces, self._spans))
        if taken_tokens(kept, pieces, self._spans).any():
            raise DataError(
                f"trajectory {row.columns['id']!r} still matches after its ids were redacted; "
                "narrow --redact"
            )
        return kept

    def _spans(self, text: str) -> list[tuple[int, int]]:
        return [
            match.span() for pattern in self._patterns for match in pattern.finditer(text)
        ]


_SIMPLE = re.compile(r'([a-z_]+:("[^"]*"|[^\s",*]+)( |$))*')
"""A query as an exported file answers it."""
_SHA256 = re.compile(r'"sha256":\s?"([0-9a-f]{64})"')


class ExportedAnswers:
    """The answers about a run and some of its trajectories.

    Args:
        run: the run.
        rows: of the index, of the trajectories that are exported.
        redaction: what must not leave.
    """

    def __init__(
        self, run: OpenRun, rows: Sequence[Mapping[str, Any]], redaction: Redaction
    ) -> None:
        self._run = run
        self._asked = rows
        self.rows: list[Mapping[str, Any]] = []
        """Those that could be read, redacted."""
        self.damage: list[str] = []
        """The others, and why."""
        self._views: dict[str, dict[str, Any]] = {}
        """All but the tokens of those that could be read, by id, in their order."""
        self._redaction = redaction
        self._root = f"/api/runs/{run.key}"
        self._sha256s: dict[str, None] = {}
        self.packed: dict[str, str] = {}
        """By path, with ``?`` and what is asked for: JSON or bytes, gzipped, in base64."""
        self.images: dict[str, str] = {}
        """``data:`` URLs of images by the path that the viewer asks for."""

    def collect(self) -> None:
        """Makes all answers.

        Raises:
            DataError: ids cannot be redacted, since the tokenizer is not here.
        """
        run = self._run
        with run.lock:
            for row in self._asked:
                self._take(row)
            for trajectory_id, view in self._views.items():
                # which neighbours are in the file is known once all were read
                view["neighbours"] = self._neighbours(view["neighbours"])
                self._add_of("trajectory", trajectory_id, view)
            self._add("/api/runs", {"runs": [run_row(run)]})
            self._add(self._root, self._run_view())
            self._add(f"{self._root}/fields", fields_view(run))
            self._add(f"{self._root}/overview", self._overview())
            self._add(f"{self._root}/metrics", metrics_view(run, run.metrics.names()))
            shown = {"total": len(self.rows), "rows": self.rows}
            self._add(f"{self._root}/trajectories", shown)
            notes = run.notes.records(self._views)
            self._add(f"{self._root}/notes", {"notes": notes, "user": ""})
            self._add_groups()
            self._add_tasks()
            for sha256 in self._sha256s:
                self._add_blob(sha256)

    def _take(self, row: Mapping[str, Any]) -> None:
        """The answers about one trajectory; one that cannot be read hides itself alone."""
        trajectory_id = str(row["id"])
        try:
            stored = self._run.row(trajectory_id)
            view = trajectory_view(self._run, stored)
            texts = {name: whole_text(name, stored.columns) for name in TEXTS}
            by_token = self._by_token(stored)
        except (StoreError, LookupError, AttributeError, TypeError, ValueError) as error:
            self.damage.append(f"trajectory {trajectory_id!r} cannot be read: {error}")
            return
        # before anything is cut, counted or made of them: half a match is none
        shown = {name: beginning(self._redaction.json(own)) for name, own in texts.items()}
        self.rows.append(self._redaction.row(row) | shown)
        self._views[trajectory_id] = view
        for name, one in by_token.items():
            self._add_of(name, trajectory_id, one)

    def _by_token(self, row: StoredRow) -> dict[str, Any]:
        run = self._run
        try:
            pieces = run.pieces(row.columns["stage"])
        except DataError as error:
            if self._redaction:
                raise DataError(
                    f"--redact needs the run's tokenizer to find matches in token ids: {error}"
                ) from error
            return {"tokens": token_view(run, row)}
        if self._redaction:
            row = self._redaction.tokens(row, pieces)
        return {"tokens": token_view(run, row), "rendered": rendered_view(pieces, row)}

    def _add_groups(self) -> None:
        """The groups as far as they are exported; the page puts their tokens in."""
        groups: dict[str, dict[str, Mapping[str, Any]]] = {}
        for trajectory_id, row in zip(self._views, self.rows, strict=True):
            asked = self._redaction.json([row["group"], row["stage"], row["label"]])
            groups.setdefault(to_json(list(map(str, asked))), {})[trajectory_id] = row
        for named, rows in groups.items():
            view = group_of_rows(list(rows.values()), [self._run.row(own) for own in rows])
            self._add_named("group", named, view)

    def _add_tasks(self) -> None:
        tasks: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            tasks.setdefault(row["task"], []).append(row)
        for task_id, rows in tasks.items():
            self._add_named("task", f"id={task_id}", task_view(rows))

    def _run_view(self) -> dict[str, Any]:
        """What heads the pages. What is said of damage quotes the run in parts, and half a match is
        none.
        """
        view = run_view(self._run)
        if self._redaction and view["damage"]:
            view["damage"] = [
                "the export named what, which this redacted file does not quote"
            ]
        return view

    def _overview(self) -> dict[str, Any]:
        """The overview; what leads out of the file is no link."""
        found = overview(self._run)
        for entry in (*found["findings"], *found["alerts"], *found["dropped"]):
            entry["link"] = self._link(entry["link"])
        for finding in found["findings"]:
            finding["chart"] = None
            finding["episodes"] = [own for own in finding["episodes"] if own in self._views]
        return found

    def _link(self, link: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        page = (link or {}).get("page")
        if page == "trajectories":
            return link if _SIMPLE.fullmatch(str((link or {}).get("query") or "")) else None
        if page == "trajectory":
            return link if (link or {}).get("id") in self._views else None
        # Other pages ask a server, which the file has not.
        return link if page == "overview" else None

    def _add_of(self, what: str, trajectory_id: str, value: Any) -> None:
        self._add_named(what, f"id={self._redaction.text(trajectory_id)}", value)

    def _add_named(self, what: str, name: str, value: Any) -> None:
        self._add(f"{self._root}/{what}?{name}", value)

    def _add(self, name: str, value: Any) -> None:
        text = to_json(self._redaction.json(value))
        self._sha256s |= dict.fromkeys(_SHA256.findall(text))
        self._pack(name, text.encode())

    def _add_blob(self, sha256: str) -> None:
        try:
            data = self._redaction.data(self._run.blob(sha256))
        except ViewerError:
            # it was not kept; the page says so when it is asked for
            return
        if data is None:
            return
        path = f"{self._root}/blob/{sha256}"
        self._pack(path, data)
        if (kind := image_type(data)) is not None:
            self.images[path] = data_url(data, kind)

    def _pack(self, name: str, data: bytes) -> None:
        self.packed[name] = base64.b64encode(gzip.compress(data, mtime=0)).decode()

    def _neighbours(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those that are exported too."""
        own = self._views
        return {
            name: [one for one in value if one in own]
            if isinstance(value, list)
            else (value if value in own else None)
            for name, value in given.items()
        }
