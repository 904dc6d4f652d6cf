"""Settings view: what a run was set to, where that was written, and what other runs have else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.guards.parsing import mapping
from agentrl.store.json_text import to_json
from agentrl.viewer.runs.open_run import OpenRun

_DEEPEST = 20
_PLACES = ("run.dir", "run.base_dir")
_OF_A_START = ("id", "created", "seed", "command", "host", "sources")
"""What each start of a run has anew, in ``run.json``; its seed is a setting too."""


def settings_view(run: OpenRun) -> dict[str, Any]:
    """Every setting with its value and source; ``error`` says why there are none.

    Args:
        run: the run, under its lock.
    """
    settings, error = run.settings()
    sources = mapping(run.directory.read_record().get("sources"))
    rows = [
        {
            "path": path,
            "value": value,
            "source": _source(sources, path) if sources else None,
        }
        for path, value in flattened(by_stage(settings))
    ]
    return {"rows": rows, "error": error}


def by_stage(config: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved configuration, its stages by name, so that those of two runs can be compared."""
    stages = {
        str(stage.get("name")): {
            name: value for name, value in stage.items() if name != "name"
        }
        for stage in stages_in(config)
    }
    return {**config, "stages": stages}


def stages_in(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of ``stages``; none where that is no list."""
    stages = config.get("stages")
    return (
        [one for one in stages if isinstance(one, dict)] if isinstance(stages, list) else []
    )


def flattened(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The leaves of mappings by dotted path; a list is a leaf."""
    if isinstance(value, Mapping) and value and depth < _DEEPEST:
        for name, inner in value.items():
            yield from flattened(inner, f"{path}.{name}" if path else str(name), depth + 1)
    elif path and value != {}:
        yield path, value


def _source(sources: Mapping[str, Any], path: str) -> str:
    """Where a value was written; one within a function's arguments with all of these."""
    while path:
        if path in sources:
            return str(sources[path])
        path = path.rpartition(".")[0]
    return "default"


class RunFacts:
    """What tells a run from others: its settings, and of its record the code, data and machine.

    Args:
        run: the run, under its lock.

    Raises:
        StoreError: this agentrl cannot read the run.
    """

    def __init__(self, run: OpenRun) -> None:
        settings, self.error = run.settings()
        self.settings = dict(flattened(by_stage(settings)))
        record = run.directory.read_record()
        own = {name: value for name, value in record.items() if name not in _OF_A_START}
        self.record = dict(flattened(own))
        self.seed = self.settings.get("run.seed", record.get("seed"))

    def but_for_the_seed(self) -> str | None:
        """A text that is equal for runs that differ by their seed alone: of equal settings,
        versions and code. Data may follow from a seed. None where the settings are not known.
        """
        if self.error or not self.settings:
            return None
        own = {k: v for k, v in self.settings.items() if k not in (*_PLACES, "run.seed")}
        code = {
            k: v for k, v in self.record.items() if k.split(".")[0] in ("versions", "git")
        }
        return to_json([sorted(own.items()), sorted(code.items())])


def differences(facts: Sequence[RunFacts]) -> list[dict[str, Any]]:
    """The settings, then the entries of records, that are not the same in all runs; None where a
    run has none.
    """
    rows = []
    for kind in ("settings", "record"):
        tables = [getattr(own, kind) for own in facts]
        # A run whose settings cannot be read says so alone; it differs in none.
        known = [own for own in facts if kind == "record" or not own.error]
        for path in sorted({path for table in tables for path in table}):
            texts = {to_json(getattr(own, kind).get(path)) for own in known}
            if len(texts) > 1:
                values = [table.get(path) for table in tables]
                rows.append({"path": path, "kind": kind, "values": values})
    return rows
