"""Data sets: a reference in the configuration becomes tasks, or rows to imitate."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import AgentRLError, DataError
from agentrl.llm.wire import stored_message
from agentrl.run.data.images import place_images
from agentrl.types import Task, load_object


def load_tasks(
    reference: str,
    args: Mapping[str, Any],
    *,
    base_dir: Path,
    seed: int,
    setting: str,
    limit: int | None = None,
) -> list[Task]:
    """The tasks of a data set.

    Args:
        reference: ``file.py:function``, ``module:function``, a ``.jsonl`` or ``.parquet`` file, or
            a folder that ``datasets.save_to_disk`` wrote.
        args: keyword arguments of the function; one that takes ``seed`` gets ``seed`` unless given
            here.
        base_dir: where relative references start.
        seed: ``run.seed``.
        setting: the setting that holds the reference, for errors.
        limit: only the first so many tasks.

    Raises:
        DataError: the data set cannot be read, is empty, or a row is no task; the row is named.
    """
    rows = finite_rows(reference, args, base_dir=base_dir, seed=seed, setting=setting, limit=limit)
    folder = (base_dir / reference).parent if ":" not in reference else base_dir
    return [_task(row, index, reference, folder) for index, row in enumerate(rows)]


def finite_rows(
    reference: str,
    args: Mapping[str, Any],
    *,
    base_dir: Path,
    seed: int,
    setting: str,
    limit: int | None,
) -> list[Any]:
    """The rows of a data set, or its first ``limit``.

    Raises:
        DataError: the data set cannot be read or is empty.
    """
    rows = list(
        itertools.islice(
            _rows(reference, args, base_dir=base_dir, seed=seed, setting=setting), limit
        )
    )
    if not rows:
        raise DataError(
            f"{setting}='{reference}' holds no row; point it at a data set with at least one"
        )
    return rows


def endless_rows(
    reference: str, args: Mapping[str, Any], *, base_dir: Path, seed: int, setting: str, skip: int
) -> Iterator[Any]:
    """Rows for ever, from row ``skip`` on: a finite data set is begun again.

    Raises:
        DataError: the data set cannot be read or is empty.
    """

    def repeated() -> Iterator[Any]:
        while True:
            count = 0
            for row in _rows(reference, args, base_dir=base_dir, seed=seed, setting=setting):
                count += 1
                yield row
            if not count:
                raise DataError(
                    f"{setting}='{reference}' holds no row; point it at a data set with at least "
                    "one"
                )

    return itertools.islice(repeated(), skip, None)


def rows_hash(tasks: Sequence[Task]) -> str:
    """SHA-256 over the tasks as JSON: equal data, equal hash."""
    digest = hashlib.sha256()
    for task in tasks:
        row = [task.id, task.messages, task.answer, task.data_source, dict(task.info)]
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _rows(
    reference: str, args: Mapping[str, Any], *, base_dir: Path, seed: int, setting: str
) -> Iterable[Any]:
    path = base_dir / reference
    if reference.endswith(".jsonl"):
        return _jsonl(path, setting)
    if reference.endswith(".parquet"):
        return _read(_parquet(path, setting), f"{setting}='{path}' cannot be read:")
    if ":" not in reference:
        return _read(_folder(path, setting), f"{setting}='{path}' cannot be read:")
    function = load_object(reference, base_dir=base_dir)
    keywords = dict(args)
    try:
        if "seed" in inspect.signature(function).parameters:
            keywords.setdefault("seed", seed)
        rows = function(**keywords)
    except AgentRLError:
        raise
    except Exception as error:  # boundary: the user's own code
        raise DataError(
            f"{setting}='{reference}' raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(rows, Iterable):
        raise DataError(
            f"{setting}='{reference}' must return an iterable of rows, got {type(rows).__name__}"
        )
    return _read(rows, f"{setting}='{reference}' raised")


def _read(rows: Iterable[Any], fault: str) -> Iterator[Any]:
    """The rows; what reading them raises is a fault of the data."""
    try:
        yield from rows
    except AgentRLError:
        raise
    except Exception as error:  # boundary: the user's own code or file
        raise DataError(f"{fault} {type(error).__name__}: {error}") from error


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


def _task(row: Any, index: int, reference: str, folder: Path) -> Task:
    """A row as a task: a Task itself, our own columns, or verl's (data_source, prompt,
    reward_model, extra_info).

    Files of images are named from ``folder`` on.
    """
    if isinstance(row, Task):
        return row
    if not isinstance(row, Mapping):
        raise DataError(
            f"row {index} of {reference} must be a Task or a mapping, got {type(row).__name__}"
        )
    messages = row.get("messages", row.get("prompt", row.get("question")))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if messages is None:
        raise DataError(
            f"row {index} of {reference} has no 'messages', 'prompt' or 'question'; it has "
            f"{sorted(row)}"
        )
    if not isinstance(messages, Sequence) or not all(
        isinstance(m, Mapping) and "role" in m for m in messages
    ):
        raise DataError(
            f"row {index} of {reference}: 'messages' must be text or a list of messages with a "
            f"role, got {messages!r:.200}"
        )
    reward_model = row.get("reward_model") or {}
    known = {"id", "messages", "prompt", "question", "images", "answer", "data_source", "info"}
    known |= {"reward_model", "extra_info"}
    extra = {name: value for name, value in row.items() if name not in known}
    return Task(
        id=str(row.get("id", index)),
        messages=tuple(
            stored_message(message, f"row {index} of {reference}: messages[{number}]")
            for number, message in enumerate(
                place_images(messages, row.get("images"), folder, f"row {index} of {reference}")
            )
        ),
        answer=row.get("answer", reward_model.get("ground_truth")),
        data_source=str(row.get("data_source", "default")),
        info={**extra, **(row.get("extra_info") or {}), **(row.get("info") or {})},
    )
