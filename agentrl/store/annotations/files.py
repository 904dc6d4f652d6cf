"""Annotation files: the annotations of one writer, live by step and sealed, and their columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.guards.parsing import parse_json
from agentrl.guards.regular_file import read_regular
from agentrl.store.annotations.annotation import Annotation, StoredAnnotation, encode_annotation
from agentrl.store.annotations.columns import (
    FULL_COLUMNS,
    TOKEN_COLUMNS,
    TRAJECTORY_COLUMNS,
    AnnotationColumn,
)
from agentrl.store.annotations.rollbacks import Rollbacks
from agentrl.store.annotations.shard import (
    AnnotationShardWriter,
    LiveAnnotation,
    seal_annotations,
)
from agentrl.store.atomic import write_json
from agentrl.store.masking import SecretMask
from agentrl.store.run_directory import RunDirectory
from agentrl.store.step_files.sealing import StepFiles

_STANDARD = {one.name: one for one in (*TRAJECTORY_COLUMNS, *TOKEN_COLUMNS, *FULL_COLUMNS)}


class AnnotationFiles(StepFiles[LiveAnnotation]):
    """What a writer annotates. Used by one thread, but for ``columns``.

    Args:
        run: whose annotations.
        writer: the name of the files.
        mask: hides secrets in values.

    Raises:
        StoreError: what an earlier writer declared, or the run's resumes, cannot be read.
    """

    def __init__(self, run: RunDirectory, writer: str, mask: SecretMask) -> None:
        self._path = run.annotation_columns_folder / f"{writer}.json"
        self._mask = mask
        self._resumes = Rollbacks(run).count
        self._declared = {one.name: one for one in read_declared(self._path)}
        super().__init__(run.live_annotations_folder, run.sealed_annotations_folder, writer)

    @property
    def columns(self) -> Mapping[str, AnnotationColumn]:
        """Those that arrays may have: training's own, and those declared so far."""
        return {**_STANDARD, **self._declared}

    def declare(self, columns: Iterable[AnnotationColumn]) -> None:
        """Add columns to the writer's own.

        Raises:
            StoreError: they cannot be written.
        """
        known = self._declared
        self._declared = {**known, **{one.name: one for one in columns}}
        if self._declared != known:
            write_json(self._path, [one.record() for one in self._declared.values()])

    def append(self, annotation: Annotation, recorded_at: float) -> None:
        """Add an annotation to the live files of its step, and training's own columns to those
        declared once one has a value.

        Raises:
            OSError, StoreError: it cannot be written.
        """
        names = [*annotation.values, *annotation.arrays]
        if new := [one for one in names if one in _STANDARD and one not in self._declared]:
            self.declare(_STANDARD[one] for one in new)
        stored = StoredAnnotation(annotation, recorded_at, self._resumes)
        record, arrays = encode_annotation(stored)
        record["values_json"] = self._mask(record["values_json"])
        self.add(annotation.step, record, arrays, (record, arrays))

    def new_shard(self, path: Path) -> AnnotationShardWriter:
        """See ``StepFiles``; so for what follows."""
        return AnnotationShardWriter(path, self._declared)

    def seal_live(self, live: Path, shard: Path) -> int:
        return seal_annotations(live, shard, self._declared)


def read_declared(path: Path) -> list[AnnotationColumn]:
    """The columns of a file that ``declare`` wrote; none where there is no file.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        records = parse_json(read_regular(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} must list annotation columns: {error}; remove it") from error
    if not isinstance(records, list):
        raise StoreError(f"{path} must list annotation columns, got {type(records).__name__}")
    return [AnnotationColumn.of_record(record) for record in records]
