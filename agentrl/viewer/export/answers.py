"""Answers: what the viewer would answer of some trajectories, redacted and packed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import DataError, StoreError
from agentrl.store.json_text import to_json
from agentrl.viewer.analysis.task_view import task_view
from agentrl.viewer.api_error import ApiError
from agentrl.viewer.export.modules import data_url
from agentrl.viewer.export.redaction import Redaction
from agentrl.viewer.images import image_type
from agentrl.viewer.index.columns import FACETS
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.views.comparisons import group_of_rows
from agentrl.viewer.views.overview import overview
from agentrl.viewer.views.rendered_view import rendered_view
from agentrl.viewer.views.run_view import run_row, run_view
from agentrl.viewer.views.token_view import token_view
from agentrl.viewer.views.trajectory_view import trajectory_view

_SIMPLE = re.compile(r'([a-z_]+:("[^"]*"|[^\s"]+)( |$))*')
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
        """Those that could be read."""
        self.damage: list[str] = []
        """The others, and why."""
        self._views: dict[str, dict[str, Any]] = {}
        """All but the tokens of those that could be read, by id."""
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
            self._add(self._root, run_view(run))
            self._add(f"{self._root}/overview", self._overview())
            self._add(f"{self._root}/metrics", run.metrics.as_json(run.metrics.names()))
            shown = {"total": len(self.rows), "rows": self.rows}
            self._add(f"{self._root}/trajectories", shown)
            self._add(f"{self._root}/facets", self._facets())
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
            by_token = self._by_token(stored)
        except (StoreError, LookupError, AttributeError, TypeError, ValueError) as error:
            self.damage.append(f"trajectory {trajectory_id!r} cannot be read: {error}")
            return
        self.rows.append(row)
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
            row = self._redaction.row(row, pieces)
        return {"tokens": token_view(run, row), "rendered": rendered_view(pieces, row)}

    def _add_groups(self) -> None:
        """The groups as far as they are exported; the page puts their tokens in.

        A group is asked for with its step or without: two evaluations of one label have groups of
        equal numbers.
        """
        groups: dict[tuple[int, str, str, int | None], list[Mapping[str, Any]]] = {}
        for row in self.rows:
            place = (row["group_index"], row["stage"], row["label"])
            for step in (row["step"], None):
                groups.setdefault((*place, step), []).append(row)
        for (number, stage, label, step), rows in groups.items():
            if step is not None and len(rows) == len(groups[number, stage, label, None]):
                continue
            view = group_of_rows(rows, [self._run.row(row["id"]) for row in rows])
            asked = self._redaction.json([number, stage, label, "" if step is None else step])
            self._add_named("group", to_json([str(value) for value in asked]), view)

    def _add_tasks(self) -> None:
        tasks: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            tasks.setdefault(row["task_id"], []).append(row)
        for task_id, rows in tasks.items():
            self._add_of("task", task_id, task_view(rows))

    def _overview(self) -> dict[str, Any]:
        """The overview; what leads out of the file is no link."""
        found = overview(self._run)
        for entry in (*found["findings"], *found["alerts"]):
            entry["link"] = self._link(entry["link"])
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
        text = to_json(self._redaction.json(json.loads(to_json(value))))
        self._sha256s |= dict.fromkeys(_SHA256.findall(text))
        self._pack(name, text.encode())

    def _add_blob(self, sha256: str) -> None:
        try:
            data = self._redaction.data(self._run.blob(sha256))
        except ApiError:
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

    def _facets(self) -> dict[str, Any]:
        columns = {}
        for name in FACETS:
            counts: Counter[str] = Counter()
            for row in self.rows:
                counts.update(row[name] if isinstance(row[name], list) else [row[name]])
            columns[name] = [list(pair) for pair in counts.most_common()]
        return {"columns": columns, "histograms": {}}
