"""Stored rows: columns of many trajectories, each shard read once, and the episodes in them.

``TrajectoryReader.get`` reads one trajectory whole. An analysis wants little of many: the columns
that it names are all that is read of a sealed shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.store import (
    NoTrajectoryError,
    RunDirectory,
    TrajectoryReader,
    TrajectorySummary,
)
from agentrl.store.json_text import from_json, to_json
from agentrl.store.shard import shard_file
from agentrl.store.trajectories.columns import ARRAYS
from agentrl.viewer.index import Place
from agentrl.viewer.index.fields import TEXTS, Field, named_field

_BATCH = 64

Row = dict[str, Any]


def stored_rows(
    run: RunDirectory,
    reader: TrajectoryReader,
    places: Iterable[TrajectorySummary | Place],
    columns: Sequence[str],
) -> Iterator[Row]:
    """Columns of trajectories, each once: those of sealed shards in the order of the files, then
    the live ones.

    Args:
        run: where.
        reader: the run's.
        places: which; of several records of one id the one that was recorded then.
        columns: by name; those in ``ARRAYS`` come as numpy arrays ``[N]``.

    Raises:
        StoreError: a file is damaged.
    """
    sought = {place.id: place for place in places}
    names = tuple(dict.fromkeys(("id", "recorded_at", *columns)))
    # A trajectory lies in a shard of the step in which it ended.
    for step in sorted({place.step for place in sought.values()}):
        for path in sorted(run.shard_path(step, "writer", 0).parent.glob("*.parquet")):
            for row in _sealed(path, names):
                place = sought.get(row["id"])
                if place is not None and place.recorded_at == row["recorded_at"]:
                    del sought[row["id"]]
                    yield row
    for trajectory_id in sought:
        try:
            whole, arrays = reader.row(trajectory_id)
        except NoTrajectoryError:
            # dropped by store.keep since it was listed
            continue
        yield {
            name: getattr(arrays, name) if name in ARRAYS else whole[name]
            for name in names
            if name in ARRAYS or name in whole
        }


def _sealed(path: Path, names: Sequence[str]) -> Iterator[Row]:
    try:
        with shard_file(path) as file:
            there = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=_BATCH, columns=there):
                yield from _rows(batch)
    except FileNotFoundError:
        # store.keep left nothing of it
        return
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path} cannot be read as a shard: {error}") from error


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    arrays = [name for name in batch.schema.names if name in ARRAYS]
    plain = batch.drop_columns(arrays).to_pylist()
    for index, row in enumerate(plain):
        for name in arrays:
            row[name] = np.asarray(batch[name][index].values.to_numpy())
        yield row


_MOST_TEXT = 500
"""Characters that a list shows of a text."""


def add_texts(
    run: RunDirectory,
    reader: TrajectoryReader,
    rows: Sequence[Row],
    fields: Mapping[str, Field],
    names: Sequence[str],
) -> None:
    """Adds the beginnings of texts to rows of the index.

    Args:
        run: where.
        reader: the run's.
        rows: of the index.
        fields: of the run.
        names: what is shown of them; those of ``TEXTS`` are added.

    Raises:
        ConfigError: a name is neither a field nor a text.
        StoreError: a file is damaged.
    """
    texts = [
        name for name in names if name in TEXTS or not named_field(name, fields, "columns")
    ]
    by_id = {row["id"]: row for row in rows} if texts else {}
    places = [Place(row["id"], row["step"], row["recorded_at"]) for row in by_id.values()]
    for stored in stored_rows(run, reader, places, [TEXTS[name] for name in texts]):
        by_id[stored["id"]] |= {name: beginning(whole_text(name, stored)) for name in texts}


def whole_text(name: str, columns: Mapping[str, Any]) -> Any:
    """One of ``TEXTS``, by the columns of its trajectory; an answer may be any JSON."""
    text = columns[TEXTS[name]]
    return from_json(text).get("answer") if name == "answer" else text


def beginning(text: Any) -> str:
    """What a list shows of a text."""
    return (text if isinstance(text, str) else to_json(text))[:_MOST_TEXT]


NO_CALL = "(no call)"
UNREADABLE = "(unreadable call)"
EPISODE_COLUMNS = ("id", "task_id", "step", "reward", "prompt", "turns")


@dataclass(frozen=True, slots=True)
class Episode:
    """What a trajectory said and did.

    Args:
        id: the trajectory's.
        task_id: the task; rollouts of one task count as one observation, as far as they are alike.
        prompt: the opening conversation.
        texts: the policy's text, by turn.
        calls: by turn, each call as ``tool outcome``, such as ``python timeout``.
        reward: None where it failed or was cancelled.
        step: in which it ended.
    """

    id: str
    task_id: str
    prompt: str
    texts: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]
    reward: float | None
    step: int = 0


def read_episodes(
    run: RunDirectory, reader: TrajectoryReader, places: Iterable[TrajectorySummary | Place]
) -> Iterator[Episode]:
    """Episodes of these trajectories, in the order of the files; reads no tokens.

    Raises:
        StoreError: a file is damaged.
    """
    for row in stored_rows(run, reader, places, EPISODE_COLUMNS):
        turns = from_json(row["turns"])
        yield Episode(
            id=row["id"],
            task_id=row["task_id"],
            prompt=row["prompt"],
            texts=tuple(turn["text"] for turn in turns),
            calls=tuple(tuple(_call(call) for call in turn["calls"]) for turn in turns),
            reward=row["reward"],
            step=row["step"],
        )


def _call(record: Mapping[str, Any]) -> str:
    """One call as a word: the tool's name and what came of it."""
    call = record["call"] or {}
    result = record["result"] or {}
    problem = record["problem"] or {}
    name = call.get("name") or result.get("name") or UNREADABLE
    outcome = (
        problem.get("kind") or result.get("error") or ("ok" if result else "no result")
    )
    return f"{name} {outcome}"
