"""Sources: a reference in the configuration becomes a table of rows, or an iterator over them."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config.sections import CustomDataConfig
from agentrl.errors import ConfigError, DataError
from agentrl.run.data.row_tables import (
    HeldTable,
    JoinedTable,
    JsonlTable,
    ParquetTable,
    SourceRows,
    held,
    is_table,
    located,
)
from agentrl.run.data.verl_dataset import custom_rows
from agentrl.types.user_code.load import check_takes, load_function, signature_of
from agentrl.types.user_code.values import private_copy
from agentrl.types.user_code.wall import failed_as, wall

HUB = "hf://"
_SUFFIXES = (".jsonl", ".parquet")
_PATTERN = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class DataSource:
    """One source of a data set.

    Args:
        reference: see ``DataSet``.
        args: keyword arguments of the function, or of ``datasets.load_dataset``.
        base_dir: where relative references start.
        seed: for a function that takes ``seed``.
        setting: that holds the reference, for errors.
        limit: only the first so many rows.
        name: begins the ids of its tasks; empty for the only source of a data set.
        weight: its share of the draws; None where no source has one.
        custom: reads the reference, where it is given.
    """

    reference: str
    args: Mapping[str, Any] = field(default_factory=dict)
    base_dir: Path = Path()
    seed: int = 0
    setting: str = "data.train"
    limit: int | None = None
    name: str = ""
    weight: float | None = None
    custom: CustomDataConfig = field(default_factory=CustomDataConfig)

    @property
    def folder(self) -> Path:
        """Where files that its rows name start from."""
        if self._is_function or self.reference.startswith(HUB):
            return self.base_dir
        return self._path.parent

    def table(self) -> SourceRows:
        """Its rows by number, at least one; there may be more than ``limit``.

        Raises:
            DataError: it cannot be read, or is empty.
        """
        return self._filled(self._guarded(self._table)())

    def counted(self) -> SourceRows | None:
        """The same; None where a function yields its rows, maybe without an end.

        Raises:
            DataError: it cannot be read, or is empty.
        """
        if self.custom.path is not None or not self._is_function:
            return self.table()
        rows = self._guarded(self._called)()
        return self._filled(HeldTable(rows, self.reference)) if is_table(rows) else None

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Each row with its place, in order, read as they are taken; at least one.

        Raises:
            DataError: it cannot be read, or is empty.
        """
        rows = self._guarded(self._rows)()
        nothing = object()
        found: Any = nothing
        for index in itertools.count():
            if index == self.limit:
                return
            found = self._guarded(partial(next, rows, nothing))()
            if found is nothing:
                break
            yield found
        if index == 0:
            raise self._empty()

    @property
    def _path(self) -> Path:
        return self.base_dir / Path(self.reference).expanduser()

    @property
    def _is_function(self) -> bool:
        return ":" in self.reference and not self.reference.startswith(HUB)

    def _rows(self) -> Iterator[tuple[str, Any]]:
        if self._is_function and self.custom.path is None:
            for index, row in enumerate(map(private_copy, self._called())):
                yield f"row {index} of {self.reference}", row
        else:
            yield from located(self._table())

    def _table(self) -> SourceRows:
        if self.custom.path is not None:
            rows = custom_rows(self.custom, self._path, self.base_dir, self.seed)
            name = f"{self.custom.path}:{self.custom.name}"
            return held(rows, name, "data.custom", self.limit)
        if self._is_function:
            return held(self._called(), self.reference, self.setting, self.limit)
        if self.reference.startswith(HUB):
            return HeldTable(self._of_hub(), self.reference)
        files = self._files()
        if files is None:
            return HeldTable(self._saved(), self.reference)
        tables = [
            JsonlTable(path, self.limit) if path.suffix == ".jsonl" else ParquetTable(path)
            for path in files
        ]
        return tables[0] if len(files) == 1 else JoinedTable(tables)

    def _called(self) -> Iterable[Any]:
        rows: Iterable[Any] = call_named(
            self.setting, self.reference, self.base_dir, self.seed, self.args
        )
        if not isinstance(rows, Iterable) and not hasattr(rows, "__getitem__"):
            raise DataError(
                f"{self.setting}='{self.reference}' must return an iterable of rows, got "
                f"{type(rows).__name__}"
            )
        return rows

    def _files(self) -> list[Path] | None:
        """The files that the reference names; None for a folder of ``datasets``."""
        path = self._path
        if not _PATTERN.isdisjoint(self.reference) and not path.exists():
            found = sorted(map(Path, glob.glob(str(path), recursive=True)))
            if unknown := [one for one in found if one.suffix not in _SUFFIXES]:
                raise DataError(
                    f"{self.setting}='{self.reference}' must match .jsonl and .parquet files "
                    f"alone, and matches {unknown[0]}; narrow it"
                )
            if not found:
                raise DataError(
                    f"{self.setting}='{path}' matches no file; correct the pattern"
                )
            return found
        if self.reference.endswith(_SUFFIXES) and not path.is_dir():
            if not path.is_file():
                raise DataError(
                    f"{self.setting}='{path}' does not exist; name a file, from the "
                    "configuration's folder on"
                )
            return [path]
        if not path.is_dir():
            raise DataError(
                f"{self.setting}='{path}' is neither file.py:function, module:function, a .jsonl "
                "or .parquet file or a pattern of some, a folder, nor hf://ORG/NAME/SPLIT"
            )
        return sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES) or None

    def _saved(self) -> Any:
        from datasets import load_from_disk

        path = self._path
        found = load_from_disk(str(path))
        if isinstance(found, Mapping):
            raise DataError(
                f"{self.setting}='{path}' holds the splits {', '.join(found)}; name one of them: "
                f"{path}/SPLIT"
            )
        return found

    def _of_hub(self) -> Any:
        from datasets import load_dataset

        parts = self.reference.removeprefix(HUB).split("/")
        if len(parts) != 3 or not all(parts):
            raise DataError(
                f"{self.setting}='{self.reference}' must be hf://ORG/NAME/SPLIT; what else "
                "datasets.load_dataset takes, such as name or revision, belongs into args"
            )
        return load_dataset("/".join(parts[:2]), split=parts[2], **self.args)

    def _guarded(self, read: Callable[[], Any]) -> Callable[[], Any]:
        """``read``, whose faults are those of the data."""

        def guarded() -> Any:
            with wall(failed_as(DataError, self._fault)):
                return read()

        return guarded

    @property
    def _fault(self) -> str:
        if self.custom.path is not None:
            return f"data.custom.path='{self.custom.path}' raised"
        if self._is_function:
            return f"{self.setting}='{self.reference}' raised"
        if self.reference.startswith(HUB):
            return (
                f"{self.setting}='{self.reference}' cannot be loaded by datasets.load_dataset (a "
                "file that is here is named without hf://):"
            )
        return f"{self.setting}='{self._path}' cannot be read:"

    def _filled(self, table: SourceRows) -> SourceRows:
        if not len(table):
            raise self._empty()
        return table

    def _empty(self) -> DataError:
        return DataError(
            f"{self.setting}='{self.reference}' holds no row; point it at a data set with at "
            "least one"
        )


def call_named(
    setting: str,
    reference: str,
    base_dir: Path,
    seed: int,
    keywords: Mapping[str, Any],
    *args: Any,
) -> Any:
    """What the user's function that a setting names returns; one that takes ``seed`` gets
    ``seed``, unless it is among the keywords.

    Raises:
        ConfigError: it does not exist, or takes other arguments.
        DataError: it raised.
    """
    function = bind_named(setting, reference, base_dir, seed, keywords, *args)
    with wall(failed_as(DataError, f"{setting}={reference!r} raised", "; correct it")):
        return function()


def bind_named(
    setting: str,
    reference: str,
    base_dir: Path,
    seed: int,
    keywords: Mapping[str, Any],
    *args: Any,
) -> Callable[[], Any]:
    """The same function with its arguments, not called yet.

    Raises:
        ConfigError: it does not exist, or takes other arguments.
    """

    def broken(rule: str) -> ConfigError:
        return ConfigError(f"{setting}{rule}")

    given = ["folder" for _ in args] + [f"{key}=" for key in keywords]
    takes = f"({', '.join(given)})" if given else "no arguments, or seed"
    function = load_function(reference, base_dir, broken, takes)
    if "seed" in signature_of(function).parameters:
        keywords = {"seed": seed, **keywords}
    check_takes(function, reference, broken, takes, *args, **keywords)
    return partial(function, *args, **keywords)
