"""Data sets: a reference in the configuration becomes tasks, or rows to imitate."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config import StageConfig
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.llm.wire import stored_message
from agentrl.run.data.images import place_images
from agentrl.types import Task
from agentrl.types.user_code.function import (
    check_takes,
    described,
    load_function,
    signature_of,
)


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set as a configuration names it.

    Args:
        reference: ``file.py:function``, ``module:function``, a ``.jsonl`` or ``.parquet`` file, or
            a folder that ``datasets.save_to_disk`` wrote.
        args: keyword arguments of the function; one that takes ``seed`` gets ``seed`` unless given
            here.
        base_dir: where relative references start.
        seed: ``run.seed``.
        setting: the setting that holds the reference, for errors.
        limit: only the first so many rows.
    """

    reference: str
    args: Mapping[str, Any] = field(default_factory=dict)
    base_dir: Path = Path()
    seed: int = 0
    setting: str = "data.train"
    limit: int | None = None

    @classmethod
    def of_training(cls, stage: StageConfig) -> DataSet:
        """``data.train`` of a stage."""
        own = stage.data
        assert own.train is not None, "the configuration's rules ask for data.train"
        return cls(own.train, own.args, stage.base_dir, stage.run.seed)

    @classmethod
    def held_out(cls, stage: StageConfig, name: str) -> DataSet:
        """One of a stage's ``eval.sets``."""
        own = stage.eval.sets[name]
        setting = f"eval.sets.{name}.data"
        return cls(own.data, own.args, stage.base_dir, stage.run.seed, setting, own.num_tasks)

    def tasks(self) -> list[Task]:
        """Its rows as tasks.

        Raises:
            DataError: it cannot be read, is empty, or a row is no task; the row is named.
        """
        folder = self.base_dir
        if ":" not in self.reference:
            folder = (folder / self.reference).parent
        return [
            _task(row, index, f"row {index} of {self.reference}", folder)
            for index, row in enumerate(self.rows())
        ]

    def rows(self) -> list[Any]:
        """Its rows, or the first ``limit``.

        Raises:
            DataError: it cannot be read or is empty.
        """
        return list(itertools.islice(self._some_rows(), self.limit))

    def endless_rows(self, skip: int) -> Iterator[Any]:
        """Rows for ever, from row ``skip`` on: a finite data set starts again.

        Raises:
            DataError: it cannot be read or is empty.
        """
        passes = (self._some_rows() for _ in itertools.count())
        return itertools.islice(itertools.chain.from_iterable(passes), skip, None)

    def _some_rows(self) -> Iterator[Any]:
        """Every row, at least one; what reading them raises is a fault of the data."""
        path = self.base_dir / self.reference
        fault = f"{self.setting}='{path}' cannot be read:"
        rows: Iterable[Any]
        if self.reference.endswith(".jsonl"):
            rows = _jsonl(path, self.setting)
        elif self.reference.endswith(".parquet"):
            rows = _parquet(path, self.setting)
        elif ":" not in self.reference:
            rows = _folder(path, self.setting)
        else:
            fault = f"{self.setting}='{self.reference}' raised"
            rows = call_named(self.setting, self.reference, self.base_dir, self.seed, self.args)
            if not isinstance(rows, Iterable):
                raise DataError(
                    f"{self.setting}='{self.reference}' must return an iterable of rows, got "
                    f"{type(rows).__name__}"
                )
        is_empty = True
        try:
            for row in rows:
                is_empty = False
                yield row
        except AgentRLError:
            raise
        except Exception as error:  # boundary: the user's own code or file
            raise DataError(f"{fault} {type(error).__name__}: {error}") from error
        if is_empty:
            raise DataError(
                f"{self.setting}='{self.reference}' holds no row; point it at a data set with at "
                "least one"
            )


def call_named(
    setting: str, reference: str, base_dir: Path, seed: int, keywords: Mapping[str, Any], *args: Any
) -> Any:
    """What the user's function that a setting names returns; one that takes ``seed`` gets
    ``seed``, unless it is among the keywords.

    Raises:
        ConfigError: it does not exist, or takes other arguments.
        DataError: it raised.
    """
    function = bind_named(setting, reference, base_dir, seed, keywords, *args)
    try:
        return function()
    except AgentRLError:
        raise
    except Exception as error:  # boundary: the user's own code
        raise DataError(f"{setting}={reference!r} raised {described(error)}; correct it") from error


def bind_named(
    setting: str, reference: str, base_dir: Path, seed: int, keywords: Mapping[str, Any], *args: Any
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


def rows_hash(tasks: Sequence[Task]) -> str:
    """SHA-256 over the tasks as JSON: equal data, equal hash."""
    digest = hashlib.sha256()
    for task in tasks:
        row = [task.id, task.messages, task.answer, task.data_source, dict(task.info)]
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _jsonl(path: Path, setting: str) -> Iterator[Any]:
    _need(path, setting)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line.decode())
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number} is not UTF-8: {error}") from error
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}:{number} is not JSON: {error}") from error


def _parquet(path: Path, setting: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    _need(path, setting)
    for batch in pq.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _folder(path: Path, setting: str) -> Iterator[Any]:
    if not path.is_dir():
        raise DataError(
            f"{setting}='{path}' is neither file.py:function, module:function, a .jsonl or "
            ".parquet file, nor a folder of datasets.save_to_disk"
        )
    from datasets import load_from_disk

    found = load_from_disk(str(path))
    if isinstance(found, Mapping):
        raise DataError(
            f"{setting}='{path}' holds the splits {', '.join(found)}; name one of them: "
            f"{path}/SPLIT"
        )
    yield from found


def _need(path: Path, setting: str) -> None:
    if not path.is_file():
        raise DataError(
            f"{setting}='{path}' does not exist; name a file, from the configuration's folder on"
        )


def _task(row: Any, index: int, where: str, folder: Path) -> Task:
    """A row as a task: a Task itself, our own columns, or verl's (data_source, prompt,
    reward_model, extra_info).

    Files of images are named from ``folder`` on.
    """
    if isinstance(row, Task):
        return row
    if not isinstance(row, Mapping):
        raise DataError(f"{where} must be a Task or a mapping, got {type(row).__name__}")
    messages = row.get("messages", row.get("prompt", row.get("question")))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if messages is None:
        raise DataError(f"{where} has no 'messages', 'prompt' or 'question'; it has {sorted(row)}")
    if not isinstance(messages, Sequence) or not all(
        isinstance(m, Mapping) and "role" in m for m in messages
    ):
        raise DataError(
            f"{where}: 'messages' must be text or a list of messages with a "
            f"role, got {messages!r:.200}"
        )
    reward_model = row.get("reward_model") or {}
    known = {"id", "messages", "prompt", "question", "images", "answer", "data_source", "info"}
    known |= {"reward_model", "extra_info"}
    extra = {name: value for name, value in row.items() if name not in known}
    return Task(
        id=str(row.get("id", index)),
        messages=tuple(
            stored_message(message, f"{where}: messages[{number}]")
            for number, message in enumerate(
                place_images(messages, row.get("images"), folder, where)
            )
        ),
        answer=row.get("answer", reward_model.get("ground_truth")),
        data_source=str(row.get("data_source", "default")),
        info={**extra, **(row.get("extra_info") or {}), **(row.get("info") or {})},
    )
