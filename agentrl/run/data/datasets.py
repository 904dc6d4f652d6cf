"""Data sets: a reference in the configuration becomes tasks, or rows to imitate."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.config import StageConfig
from agentrl.config.sections import CustomDataConfig, DataSourceConfig
from agentrl.errors import DataError
from agentrl.rollouts.samplers.mixture import Mixture
from agentrl.rollouts.samplers.settings import UniformSettings
from agentrl.rollouts.samplers.uniform import Uniform
from agentrl.run.data.images import place_row_images
from agentrl.run.data.row_tables import LocatedRow, SourceRows
from agentrl.run.data.sources import DataSource, bind_named, call_named
from agentrl.run.data.task_rows import check_style, same_id, task_of
from agentrl.run.data.task_table import SourceTasks, TaskStream, TaskTable
from agentrl.store.json_text import sorted_json
from agentrl.types import REWARD_STYLE, Task

__all__ = ["DataSet", "bind_named", "call_named", "rows_hash"]

_HASHED_OF_STREAM = 1000


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set as a configuration names it.

    Args:
        reference: ``file.py:function``, ``module:function``, a ``.jsonl`` or ``.parquet`` file, a
            pattern of such files, a folder of them or one that ``datasets.save_to_disk`` wrote,
            ``hf://ORG/NAME/SPLIT``; or several sources.
        args: keyword arguments of the function, or of ``datasets.load_dataset``; a function that
            takes ``seed`` gets ``seed`` unless given here.
        base_dir: where relative references start.
        seed: ``run.seed``.
        setting: the setting that holds the reference, for errors.
        limit: only the first so many rows.
        custom: the user's class that reads the reference.
        part: which rows of each source: number K of N parts.
        stream: whether rows are read as they are drawn.
        shuffle: whether rows to imitate or compare come in another order each epoch.
        has_reward_model: whether a task may ask for a reward model.
    """

    reference: str | tuple[DataSourceConfig, ...]
    args: Mapping[str, Any] = field(default_factory=dict)
    base_dir: Path = Path()
    seed: int = 0
    setting: str = "data.train"
    limit: int | None = None
    custom: CustomDataConfig = field(default_factory=CustomDataConfig)
    part: tuple[int, int] = (0, 1)
    stream: bool = False
    shuffle: bool = False
    has_reward_model: bool = True

    @classmethod
    def of_training(cls, stage: StageConfig) -> DataSet:
        """``data.train`` of a stage."""
        own = stage.data
        assert own.train is not None, "the configuration's rules ask for data.train"
        return cls(
            own.train,
            own.args,
            stage.base_dir,
            stage.run.seed,
            custom=own.custom,
            part=own.part,
            stream=own.stream,
            shuffle=own.shuffle,
            has_reward_model=stage.reward.model.given or not stage.plays or stage.replays,
        )

    @classmethod
    def held_out(cls, stage: StageConfig, name: str) -> DataSet:
        """One of a stage's ``eval.sets``."""
        own = stage.eval.sets[name]
        setting = f"eval.sets.{name}.data"
        return cls(
            own.data, own.args, stage.base_dir, stage.run.seed, setting, own.num_tasks
        )

    @property
    def sources(self) -> list[DataSource]:
        """Its sources, in order."""
        first = DataSource(
            "",
            self.args,
            self.base_dir,
            self.seed,
            self.setting,
            self.limit,
            custom=self.custom,
        )
        if isinstance(self.reference, str):
            return [replace(first, reference=self.reference)]
        weighed = any(source.weight is not None for source in self.reference)
        return [
            replace(
                first,
                reference=one.data,
                args=one.args,
                setting=f"{self.setting}.{number}.data",
                name=one.name or one.data,
                weight=(one.weight or 1.0) if weighed else None,
            )
            for number, one in enumerate(self.reference)
        ]

    def tasks(self) -> TaskTable | TaskStream:
        """Its rows as tasks. Each is read once here, but for a stream's.

        Raises:
            DataError: it cannot be read, is empty, a row is no task, or two have one id; the row is
                named.
        """
        if self.stream:
            stream = TaskStream(self._streamed)
            # A fault of the first task is better known now than in its episode.
            stream[0]
            return stream
        table = self._joined([source.table() for source in self.sources])
        table.check(has_reward_model=self.has_reward_model)
        return table

    def counted(self) -> TaskTable | None:
        """Its rows by number; None where they are read as they are drawn.

        Raises:
            DataError: it cannot be read, or is empty.
        """
        tables = () if self.stream else [source.counted() for source in self.sources]
        whole = [table for table in tables if table is not None]
        return self._joined(whole) if whole and len(whole) == len(tables) else None

    def _joined(self, tables: Sequence[SourceRows]) -> TaskTable:
        which, of = self.part
        joined = TaskTable(
            [
                SourceTasks(
                    rows,
                    source.folder,
                    source.name,
                    source.weight,
                    np.arange(len(rows), dtype=np.int64)[: source.limit][which::of],
                )
                for source, rows in zip(self.sources, tables, strict=True)
            ]
        )
        if not joined:
            raise DataError(
                f"data.shard={which}/{of} of {self.setting} holds no row; lower N"
            )
        return joined

    def rows(self) -> list[Any]:
        """Its rows to imitate or compare, or the first ``limit``.

        Raises:
            DataError: it cannot be read, is empty, or images do not fit their places.
        """
        return [row for _, row in self.located_rows()]

    def located_rows(self) -> list[LocatedRow]:
        """The same, each after its place."""
        once = itertools.chain.from_iterable(map(self._conversations, self.sources))
        return list(itertools.islice(once, self.limit))

    def endless_rows(self, skip: int) -> Iterator[LocatedRow]:
        """Rows for ever, each after its place, from row ``skip`` on, epoch after epoch. What a
        function yields comes as it is yielded, and so do sources beside it.

        Raises:
            DataError: it cannot be read, is empty, or images do not fit their places.
        """
        table = self.counted()
        if table is not None:
            order = Uniform(
                UniformSettings(),
                table,
                seed=self.seed,
                shuffle=self.shuffle,
                mixture=table.mixture,
            )
            return (table.located(order.at(place)) for place in itertools.count(skip))
        sources = self.sources
        weights = [source.weight for source in sources if source.weight is not None]
        if weights:
            rows = _mixed(
                [_endless(self._conversations, [source]) for source in sources], weights
            )
        else:
            rows = _endless(self._conversations, sources)
        return itertools.islice(rows, skip, None)

    def _part(self, source: DataSource) -> Iterator[LocatedRow]:
        which, of = self.part
        return itertools.islice(source.rows(), which, None, of)

    def _conversations(self, source: DataSource) -> Iterator[LocatedRow]:
        for where, row in self._part(source):
            yield where, place_row_images(row, source.folder, where)

    def _streamed(self) -> Iterator[Task]:
        """The tasks of a stream, for one pass where its sources have no weights."""

        def read(source: DataSource) -> Iterator[Task]:
            which, of = self.part
            seen: dict[str, str] = {}
            for number, (where, row) in enumerate(self._part(source)):
                task = task_of(row, which + number * of, where, source.folder, source.name)
                check_style(task, where, has_reward_model=self.has_reward_model)
                if (first := seen.setdefault(task.id, where)) != where:
                    raise same_id(task, where, first)
                yield task

        sources = self.sources
        weights = [source.weight for source in sources if source.weight is not None]
        if not weights:
            return itertools.chain.from_iterable(map(read, sources))
        return _mixed([_endless(read, [source]) for source in sources], weights)


def _endless(
    read: Callable[[DataSource], Iterator[Any]], sources: Sequence[DataSource]
) -> Iterator[Any]:
    """All rows of the sources, one source behind the other, again and again."""
    while True:
        for source in sources:
            yield from read(source)


def _mixed(sources: Sequence[Iterator[Any]], weights: Sequence[float]) -> Iterator[Any]:
    """Rows of endless sources by their weights."""
    mixture = Mixture(weights)
    while True:
        which, _ = mixture.next()
        yield next(sources[which])


def rows_hash(tasks: Iterable[Task]) -> str:
    """SHA-256 over the tasks as JSON: equal data, equal hash. Of a stream over the first ones.

    What scores a task is no part of it, as it was none before it was known.
    """
    if isinstance(tasks, TaskStream):
        tasks = itertools.islice(tasks, _HASHED_OF_STREAM)
    digest = hashlib.sha256()
    for task in tasks:
        info = {key: own for key, own in task.info.items() if key != REWARD_STYLE}
        row = [task.id, task.messages, task.answer, task.data_source, info]
        digest.update(sorted_json(row).encode())
    return digest.hexdigest()
