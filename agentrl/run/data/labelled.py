"""Labelled episodes: conversations to imitate and pairs to compare, as people marked them.

A note of the viewer has labels, on a trajectory, a turn or a range of tokens. An episode that a
resumed run played again after its label was given is another one, and is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from agentrl.errors import DataError
from agentrl.run.data.images import with_stored_images
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import Message, Trajectory
from agentrl.viewer.notes import Note, NoteBook

logger = logging.getLogger(__name__)


def conversations_of_label(run: str, label: str) -> list[dict[str, Any]]:
    """The labelled conversations of a run, to be imitated.

    A data set for ``algorithm: sft``: ``data: {train:
    "agentrl.run.data.labelled:conversations_of_label", args: {run: runs/code, label: good}}``. A
    labelled turn, or one whose tokens are labelled, gives the conversation up to it; a labelled
    trajectory gives each of its token sequences whole. A conversation labelled twice comes once.

    Args:
        run: the run directory, from the current folder.
        label: of the notes to take.

    Returns:
        ``{"messages": [...]}``, by trajectory in the order of its first note.

    Raises:
        DataError: no note has the label, or one names a turn that its trajectory lacks.
        StoreError: there is no run, or it has not the trajectory of a note.
    """
    directory = RunDirectory.open(run)
    reader = TrajectoryReader(directory)
    return [
        {"messages": _conversation(trajectory, turn, directory)}
        for trajectory, notes in _labelled(reader, _notes(directory, label))
        for turn in dict.fromkeys(
            leaf for note in notes for leaf in _leaves(note, trajectory)
        )
    ]


def pairs_of_labels(run: str, chosen: str, rejected: str) -> list[dict[str, Any]]:
    """Pairs of labelled rollouts of one group, with their own tokens.

    A data set for ``algorithm: reward_model``: ``data: {train:
    "agentrl.run.data.labelled:pairs_of_labels", args: {run: runs/code, chosen: good,
    rejected: bad}}``. Each rollout with the one label is paired with each of its group with the
    other; labels of turns and tokens count for their trajectory. One that has both labels is
    passed over.

    Args:
        run: the run directory, from the current folder.
        chosen, rejected: labels.

    Returns:
        ``{"chosen": Trajectory, "rejected": Trajectory}``, in the order of the groups.

    Raises:
        DataError: a label is on no note, or no group has rollouts with each.
        StoreError: there is no run, or it has not the trajectory of a note.
    """
    directory = RunDirectory.open(run)
    reader = TrajectoryReader(directory)
    better = {one.id: one for one, _ in _labelled(reader, _notes(directory, chosen))}
    worse = {one.id: one for one, _ in _labelled(reader, _notes(directory, rejected))}
    marked = [(better | worse)[name] for name in better.keys() ^ worse.keys()]
    marked.sort(key=lambda one: (*_group(one), one.rollout_index, one.attempt))
    pairs = [
        {"chosen": one, "rejected": other}
        for _, rollouts in groupby(marked, key=_group)
        for one, other in _crossed(list(rollouts), better.keys())
    ]
    if not pairs:
        raise DataError(
            f"{run} has no group in which one rollout is labelled {chosen!r} alone and another "
            f"{rejected!r} alone; label two rollouts of one group in agentrl view"
        )
    return pairs


def _labelled(
    reader: TrajectoryReader, labelled: Mapping[str, list[Note]]
) -> Iterator[tuple[Trajectory, list[Note]]]:
    """The trajectories of notes, each with those about its newest record."""
    for name, notes in labelled.items():
        stored = reader.get(name)
        standing = [note for note in notes if note.is_about(stored.summary.recorded_at)]
        if standing:
            yield stored.trajectory, standing
        else:
            logger.warning(
                "the run played %s again after it was labelled, so its labels are passed over; "
                "label it again in agentrl view",
                name,
                extra={"event": "outdated_label", "trajectory": name},
            )


def _notes(run: RunDirectory, label: str) -> dict[str, list[Note]]:
    """The notes with a label, by trajectory."""
    # without a trajectory they are tags of the run
    notes = [note for note in NoteBook(run.root / "notes").all() if note.trajectory]
    found: dict[str, list[Note]] = {}
    for note in notes:
        if label in note.labels:
            found.setdefault(note.trajectory, []).append(note)
    if not found:
        known = sorted({name for note in notes for name in note.labels})
        raise DataError(
            f"no note of {run.root} has the label {label!r}, expected one of "
            f"{', '.join(known) or 'none: it has no labels'}; label episodes in agentrl view"
        )
    return found


def _leaves(note: Note, trajectory: Trajectory) -> Iterable[int]:
    """The last turns of the conversations that a note is about."""
    if note.turn is None and note.tokens is None:
        return [sample.turns[-1] for sample in trajectory.samples()] or [
            len(trajectory.turns) - 1
        ]
    turn = note.turn if note.turn is not None else _turn_of(note, trajectory)
    if not 0 <= turn < len(trajectory.turns):
        raise DataError(
            f"note {note.id} of {note.user} is about turn {turn} of {trajectory.id!r}, which has "
            f"{len(trajectory.turns)}; delete the note"
        )
    return [turn]


def _turn_of(note: Note, trajectory: Trajectory) -> int:
    """The turn that added the last token of a note's range."""
    assert note.tokens is not None
    left = note.tokens[1]
    for turn in trajectory.turns:
        left -= sum(len(segment) for segment in turn.segments)
        if left <= 0:
            return turn.index
    return len(trajectory.turns)


def _conversation(trajectory: Trajectory, turn: int, run: RunDirectory) -> list[Message]:
    """What was said from the root of a turn's sequence to it."""
    messages: list[Message] = []
    for index in trajectory.path(turn):
        own = trajectory.turns[index]
        messages += [*own.observed, own.message]
    return with_stored_images(messages, run)


def _group(trajectory: Trajectory) -> tuple[str, int]:
    return trajectory.label, trajectory.group_index


def _crossed(
    rollouts: list[Trajectory], better: Iterable[str]
) -> Iterator[tuple[Trajectory, Trajectory]]:
    chosen = set(better)
    for one in rollouts:
        for other in rollouts:
            if one.id in chosen and other.id not in chosen:
                yield one, other
