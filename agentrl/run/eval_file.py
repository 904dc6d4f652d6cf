"""Evaluated tasks in a Parquet file: verl's columns, the responses with their scores, and whole
episodes.

A row is a task. ``data_source``, ``prompt``, ``ability``, ``reward_model`` and ``extra_info`` are
as verl's data sets have them; ``responses`` are the last texts of the samples and ``scores`` their
scores, null where a sample failed. ``trajectories`` hold each episode as JSON without its tokens,
so that it can be scored again without a model.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.envs import EpisodeView, Rubric, stated_answer
from agentrl.errors import DataError, StoreError
from agentrl.metrics import correctness
from agentrl.metrics.evaluation import TaskScores
from agentrl.store import TokenArrays, decode_trajectory, encode_trajectory, replacing
from agentrl.store.disk import check_replaceable
from agentrl.store.json_text import from_json, to_json
from agentrl.types import Message, Status, Task, Trajectory, Turn

_NO_TOKENS = TokenArrays.unpack(b"", 0)


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedTask:
    """A task and its samples; ``scores`` has one entry a trajectory, None where it failed."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    scores: tuple[float | None, ...]


def evaluated_tasks(trajectories: Iterable[Trajectory]) -> list[EvaluatedTask]:
    """Trajectories by task, in the order of first appearance; scored by ``metrics.correctness``."""
    groups: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault((trajectory.task.data_source, trajectory.task.id), []).append(
            trajectory
        )
    return [
        EvaluatedTask(
            own[0].task,
            tuple(own),
            tuple(
                correctness(t) if t.status.finished and t.reward is not None else None
                for t in own
            ),
        )
        for own in groups.values()
    ]


def task_scores(evaluated: Iterable[EvaluatedTask]) -> list[TaskScores]:
    """What the statistics need: the scores of samples that finished, and what each of them
    answers.
    """
    scored = []
    for entry in evaluated:
        scores = []
        answers = []
        for score, trajectory in zip(entry.scores, entry.trajectories, strict=True):
            if score is not None:
                scores.append(score)
                # a vote counts the answer that the text states, without case and spaces around
                text = stated_answer(EpisodeView.of(trajectory).final_text)
                answers.append(text.strip().casefold() or None)
        task = entry.task
        scored.append(TaskScores(task.id, task.data_source, tuple(scores), tuple(answers)))
    return scored


def rescored(evaluated: Sequence[EvaluatedTask], rubric: Rubric) -> list[EvaluatedTask]:
    """The same samples with the scores that ``rubric`` gives them; failed ones stay without.

    Raises:
        RewardError: a reward function failed on a sample.
    """

    async def score(entry: EvaluatedTask) -> EvaluatedTask:
        finished = [t for t in entry.trajectories if t.status.finished]
        views = [EpisodeView.of(trajectory) for trajectory in finished]
        parts = [await rubric.score(view) for view in views]
        if views and rubric.group_parts:
            for own, of_group in zip(parts, await rubric.group_scores(views), strict=True):
                own |= {name: found.value for name, found in of_group.items()}
        totals = iter([rubric.total(own, step_weight=0.0) for own in parts])
        scores = [next(totals) if t.status.finished else None for t in entry.trajectories]
        return replace(entry, scores=tuple(scores))

    # One loop scores all tasks: what a rubric opens, such as a judge's connections, belongs to it.
    with asyncio.Runner() as loop:
        try:
            return [loop.run(score(entry)) for entry in evaluated]
        finally:
            loop.run(rubric.close())


def check_eval_path(path: Path) -> None:
    """Refuses a path at which no file can be written, before the tasks are played.

    Raises:
        DataError: it is a folder, a device or a FIFO, or its folder cannot be written or made.
    """
    try:
        check_replaceable(path)
    except StoreError as error:
        raise DataError(str(error)) from error
    # The others are made with the file.
    folder = next(filter(os.path.lexists, path.absolute().parents))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{folder} is no folder that can be written; name a file elsewhere")


def write_eval_file(path: Path, evaluated: Sequence[EvaluatedTask]) -> None:
    """Writes ``path`` whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(entry, index) for index, entry in enumerate(evaluated)]
    try:
        with replacing(path) as temporary:
            pq.write_table(
                pa.Table.from_pylist(rows, schema=_schema()), temporary, compression="zstd"
            )
    except StoreError as error:
        raise DataError(f"{error}; name another file") from error


def _schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct(
                {"index": pa.int64(), "task_id": text, "answer": text, "info": text}
            ),
            "responses": pa.list_(text),
            "scores": pa.list_(pa.float64()),
            "trajectories": pa.list_(text),
        }
    )


def _row(entry: EvaluatedTask, index: int) -> dict[str, Any]:
    task = entry.task
    first = next(
        (turn for episode in entry.trajectories[:1] for turn in episode.turns), None
    )
    # The first observation is what the policy read, the system prompt included.
    opening = (first and first.observed) or task.messages
    return {
        "data_source": _text(task.data_source),
        "prompt": [
            {"role": message["role"], "content": _text(message["content"])}
            for message in opening
        ],
        "ability": _text(str(task.info.get("ability", "agent"))),
        "reward_model": {"style": "rule", "ground_truth": _text(task.answer)},
        "extra_info": {
            "index": index,
            "task_id": _text(task.id),
            "answer": to_json(task.answer),
            "info": to_json(dict(task.info)),
        },
        "responses": [_text(EpisodeView.of(own).final_text) for own in entry.trajectories],
        "scores": list(entry.scores),
        "trajectories": [_without_tokens(trajectory) for trajectory in entry.trajectories],
    }


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value)
    # Half of a surrogate pair, which UTF-8 lacks, becomes the escape that JSON has for it.
    return text.encode(errors="backslashreplace").decode()


def _without_tokens(trajectory: Trajectory) -> str:
    turns = tuple(replace(turn, context=(), completion=()) for turn in trajectory.turns)
    row, _ = encode_trajectory(replace(trajectory, turns=turns), step=0, recorded_at=0.0)
    return to_json(row)


def read_eval_file(path: Path) -> list[EvaluatedTask]:
    """What ``write_eval_file`` wrote, or a file of verl's with ``responses``, which become episodes
    of one turn.

    Raises:
        DataError: there is no such file, it is no Parquet file, or it lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        command = f"agentrl eval MODEL CONFIG --out {shlex.quote(str(path))}"
        raise DataError(f"there is no file {path}; `{command}` writes one")
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    return [_read_row(row, index, path) for index, row in enumerate(rows)]


def _read_row(row: Mapping[str, Any], index: int, path: Path) -> EvaluatedTask:
    try:
        responses = row["responses"]
        extra = row.get("extra_info") or {}
        # Whole episodes: no file of verl's has them, while its extra_info may hold any name.
        episodes = row.get("trajectories") or ()
        task = Task(
            id=str(extra.get("task_id", extra.get("index", index))),
            messages=tuple(row["prompt"]),
            answer=from_json(extra["answer"])
            if episodes
            else (row["reward_model"] or {}).get("ground_truth"),
            data_source=row["data_source"],
            info=from_json(extra["info"]) if episodes else extra,
        )
        trajectories = tuple(
            decode_trajectory(from_json(text), _NO_TOKENS) for text in episodes
        ) or tuple(_one_turn(task, text, number) for number, text in enumerate(responses))
        scores = row.get("scores") or [None] * len(trajectories)
        return EvaluatedTask(task, trajectories, tuple(scores))
    except KeyError as error:
        raise DataError(
            f"{path} has no column {error}; it must have data_source, prompt, reward_model and "
            "responses"
        ) from None
    except (StoreError, json.JSONDecodeError, TypeError) as error:
        raise DataError(f"row {index} of {path} cannot be read: {error}") from error


def _one_turn(task: Task, text: str, rollout_index: int) -> Trajectory:
    message: Message = {"role": "assistant", "content": text}
    turn = Turn(0, None, (), (), text, message, observed=task.messages)
    return Trajectory(task, 0, rollout_index, 0, "eval", (turn,), Status("terminated"))
