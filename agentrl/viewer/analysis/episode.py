"""Episode: the words and tool calls of a stored trajectory, without its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.store import RunDirectory, TrajectoryReader, TrajectorySummary
from agentrl.store.json_text import from_json
from agentrl.viewer.analysis.stored_rows import stored_rows

NO_CALL = "(no call)"
UNREADABLE = "(unreadable call)"
COLUMNS = ("id", "task_id", "reward", "prompt", "turns")


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
    """

    id: str
    task_id: str
    prompt: str
    texts: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]
    reward: float | None


def read_episodes(
    run: RunDirectory, reader: TrajectoryReader, summaries: Iterable[TrajectorySummary]
) -> Iterator[Episode]:
    """Episodes of the summaries, in the order of the files; reads no tokens.

    Raises:
        StoreError: a file is damaged.
    """
    for row in stored_rows(run, reader, summaries, COLUMNS):
        turns = from_json(row["turns"])
        yield Episode(
            id=row["id"],
            task_id=row["task_id"],
            prompt=row["prompt"],
            texts=tuple(turn["text"] for turn in turns),
            calls=tuple(tuple(_call(call) for call in turn["calls"]) for turn in turns),
            reward=row["reward"],
        )


def _call(record: Mapping[str, Any]) -> str:
    """One call as a word: the tool's name and what came of it."""
    call = record["call"] or {}
    result = record["result"] or {}
    problem = record["problem"] or {}
    name = call.get("name") or result.get("name") or UNREADABLE
    outcome = problem.get("kind") or result.get("error") or ("ok" if result else "no result")
    return f"{name} {outcome}"
