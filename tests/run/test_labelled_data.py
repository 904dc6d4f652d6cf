"""Episodes that people labelled, as data sets."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from agentrl.config import load_config
from agentrl.errors import DataError
from agentrl.run.data.datasets import DataSet
from agentrl.run.data.labelled import conversations_of_label, pairs_of_labels
from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Image, Segment, SegmentKind, Trajectory, Turn
from agentrl.viewer.notes import NoteBook
from tests.kit.episodes import BEFORE, sampled, trajectory, turn, user


def png() -> bytes:
    encoded = io.BytesIO()
    PIL.Image.new("RGB", (2, 2), (255, 0, 0)).save(encoded, "PNG")
    return encoded.getvalue()


def say(role: str, words: str) -> dict[str, object]:
    return {"role": role, "content": words}


def played(index: int, asked: object, words: str, parent: int | None = BEFORE) -> Turn:
    """Two tokens of context, three of the policy."""
    prompt = Segment(SegmentKind.PROMPT, np.arange(2))
    policy = sampled(np.arange(3), 0.0)
    return turn(index, [prompt], [policy], words, parent, observed=(user(asked),))


def episode(group: int, rollout: int, *turns: Turn) -> Trajectory:
    return trajectory(*turns, group=group, rollout=rollout, reward=float(rollout))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A group of three rollouts, the first with a branch, and another group."""
    made = RunDirectory.create(tmp_path / "run", {})
    image = Image.read(png())
    branching = (
        played(0, "a?", "b"),
        played(1, [{"type": "image", "image": image}], "d"),
        played(2, "e?", "f", 0),
    )
    with TrajectoryWriter(made) as writer:
        writer.write(episode(0, 0, *branching), 1)
        for group, rollout in ((0, 1), (0, 2), (1, 0)):
            writer.write(episode(group, rollout, played(0, "a?", f"{group}{rollout}")), 1)
    return made


def note(run: RunDirectory, trajectory: str, label: str, **about: object) -> None:
    NoteBook(run.root / "notes").add({"trajectory": trajectory, "labels": [label], **about})


def words(run: RunDirectory, label: str = "good") -> list[list[str]]:
    rows = conversations_of_label(str(run.root), label)
    return [[message["content"] for message in row["messages"]] for row in rows]


def test_a_labelled_turn_is_the_conversation_up_to_it(run: RunDirectory) -> None:
    note(run, "0-0-0", "good", turn=2)
    note(run, "0-1-0", "other", turn=0)

    assert words(run) == [["a?", "b", "e?", "f"]]


def test_labelled_tokens_stand_for_the_turn_of_the_last_one(run: RunDirectory) -> None:
    note(run, "0-0-0", "good", tokens=[3, 5])  # a turn has five tokens: the last of turn 0

    assert words(run) == [["a?", "b"]]


def test_a_labelled_trajectory_is_each_of_its_sequences_once(run: RunDirectory) -> None:
    note(run, "0-0-0", "good")
    note(run, "0-0-0", "good", turn=2)

    first, second = conversations_of_label(str(run.root), "good")
    assert [message["content"] for message in second["messages"]] == ["a?", "b", "e?", "f"]
    assert first["messages"][2]["content"][0]["image"].data == Image.read(png()).data


def test_rollouts_of_a_group_with_opposite_labels_are_pairs(run: RunDirectory) -> None:
    note(run, "0-0-0", "bad", turn=1)
    note(run, "0-1-0", "good")
    note(run, "0-2-0", "good")
    note(run, "1-0-0", "bad")

    rows = list(pairs_of_labels(str(run.root), "good", "bad"))
    assert [(row["chosen"].id, row["rejected"].id) for row in rows] == [
        ("0-1-0", "0-0-0"),
        ("0-2-0", "0-0-0"),
    ]


def test_a_rollout_with_both_labels_is_passed_over(run: RunDirectory) -> None:
    note(run, "0-0-0", "good")
    note(run, "0-0-0", "bad", turn=1)
    note(run, "0-1-0", "bad")

    with pytest.raises(
        DataError, match="no group in which one rollout is labelled 'good' alone"
    ):
        list(pairs_of_labels(str(run.root), "good", "bad"))


def test_a_label_that_nobody_gave_is_named_beside_those_given(run: RunDirectory) -> None:
    note(run, "0-0-0", "good")

    with pytest.raises(
        DataError, match=r"no note of .* has the label 'god', expected one of good"
    ):
        list(conversations_of_label(str(run.root), "god"))


def test_a_note_on_a_turn_that_is_not_there_is_named(run: RunDirectory) -> None:
    note(run, "0-1-0", "good", turn=7)

    with pytest.raises(DataError, match="is about turn 7 of '0-1-0', which has 1"):
        list(conversations_of_label(str(run.root), "good"))


def test_a_label_of_an_episode_that_was_played_again_is_passed_over(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    reader = TrajectoryReader(run)
    for name in ("0-1-0", "0-2-0"):
        note(run, name, "good", recorded_at=reader.get(name).summary.recorded_at)
    with TrajectoryWriter(run, "resumed") as writer:
        writer.write(episode(0, 1, played(0, "a?", "other words")), 1)

    assert words(run) == [["a?", "02"]]
    (told,) = [
        one for one in caplog.records if getattr(one, "event", "") == "outdated_label"
    ]
    assert told.trajectory == "0-1-0"


@pytest.mark.parametrize(
    ("algorithm", "function", "args", "columns"),
    [
        ("sft", "conversations_of_label", "label: good", {"messages"}),
        (
            "reward_model",
            "pairs_of_labels",
            "chosen: good, rejected: bad",
            {"chosen", "rejected"},
        ),
    ],
)
def test_a_configuration_names_labels_as_its_data(
    run: RunDirectory, algorithm: str, function: str, args: str, columns: set[str]
) -> None:
    note(run, "0-1-0", "good")
    note(run, "0-2-0", "bad")
    config = run.root / "labels.yaml"
    config.write_text(
        f"model: {{path: none}}\nalgorithm: {algorithm}\ntrain: {{steps: 1}}\n"
        f"data:\n  train: agentrl.run.data.labelled:{function}\n"
        f"  args: {{run: {run.root}, {args}}}\n"
    )
    (stage,) = load_config(config, ["run.dir=out"]).resolved_stages()
    (row,) = DataSet.of_training(stage).rows()
    assert row.keys() == columns
