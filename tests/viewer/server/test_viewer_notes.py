"""Notes through the viewer, and the files that they leave in the run."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.viewer.notes import NoteBook
from agentrl.viewer.viewer_error import ViewerError
from tests.kit.waiting import until
from tests.viewer.server.viewers import Client, make_trajectory


def add(client: Client, **fields: object) -> httpx.Response:
    key = client.get("/api/runs").json()["runs"][0]["key"]
    return client.post(f"/api/runs/{key}/notes", json={"trajectory": "2-0-0", **fields})


def test_a_note_is_kept_shown_and_deleted(client: Client) -> None:
    made = add(client, text="odd", turn=1, tokens=[3, 9], labels=["bad", "sft:keep"]).json()
    assert made["user"] == NoteBook(Path()).user
    assert client.of_run("/trajectory", id="2-0-0").json()["notes"] == [made]
    assert client.of_run("/trajectory", id="2-1-0").json()["notes"] == []
    key = client.get("/api/runs").json()["runs"][0]["key"]
    assert client.delete(f"/api/runs/{key}/notes/{made['id']}").status_code == 200
    assert client.delete(f"/api/runs/{key}/notes/{made['id']}").status_code == 404
    assert client.of_run("/notes").json()["notes"] == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "a text or a label"),
        ({"text": "a", "turn": -1}, "turn"),
        ({"text": "a", "tokens": [5, 5]}, "tokens"),
        ({"text": "a", "tokens": ["x", 5]}, "tokens"),
        ({"labels": ["two words"]}, "label"),
        ({"labels": "word"}, "labels"),
        ({"text": "a" * 30_000}, "20000"),
    ],
)
def test_a_note_that_is_none_is_named(
    client: Client, fields: dict[str, object], named: str
) -> None:
    answer = add(client, **fields)
    assert answer.status_code == 400
    assert named in answer.json()["error"]


def test_a_note_on_nothing_is_refused(client: Client) -> None:
    assert add(client, trajectory="9-9-9", text="a").status_code == 404
    assert add(client, trajectory=None, text="a").status_code == 404


def test_a_note_on_tokens_outlives_a_resume_that_plays_its_episode_again(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    about = {"id": "2-0-0"}
    made = add(client, text="odd", tokens=[3, 9]).json()
    first = client.of_run("/trajectory", **about).json()["summary"]
    assert made["recorded_at"] == first["recorded_at"]
    tokens = client.of_run("/tokens", **about).json()
    with TrajectoryWriter(run) as resumed:
        resumed.write(make_trajectory(tokenizer, 4), 2)  # of a step after the checkpoint
    assert client.of_run("/tokens", **about).json() == tokens
    with TrajectoryWriter(run) as resumed:
        resumed.write(make_trajectory(tokenizer, 2), 1)

    def newer() -> bool:
        again = client.of_run("/trajectory", **about).json()
        assert again["notes"] == [made]
        # so the page says so
        return bool(again["summary"]["recorded_at"] != made["recorded_at"])

    until(newer)  # the index has the newer record soon
    assert client.of_run("/tokens", **about).json()["ids"] == tokens["ids"]


def test_two_viewers_of_two_users_see_each_others_notes(tmp_path: Path) -> None:
    ann, bob = (NoteBook(tmp_path / "notes", user) for user in ("ann", "bob"))
    first = ann.add({"trajectory": "1-0-0", "text": "by ann"})
    second = bob.add({"trajectory": "1-0-0", "labels": ["good"]})
    assert ann.all() == bob.all() == [first, second]
    with pytest.raises(ViewerError, match="is bob's"):
        ann.delete(second.id)
    ann.delete(first.id)
    assert bob.all() == [second]


def test_a_torn_line_is_cut_and_a_foreign_one_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ann.jsonl"
    path.write_bytes(b'{"id": "x", "user": "bob"}\n["no"]\n{"id": "torn')
    book = NoteBook(tmp_path, "ann")
    assert book.all() == []
    kept = book.add({"trajectory": "1-0-0", "text": "whole"})
    assert NoteBook(tmp_path, "other").all() == [kept]
    assert b"torn" not in path.read_bytes()


def test_a_line_cannot_speak_for_another_user(tmp_path: Path) -> None:
    NoteBook(tmp_path, "ann").add({"trajectory": "1-0-0", "text": "mine"})
    (tmp_path / "ann.jsonl").rename(tmp_path / "bob.jsonl")
    assert [note.user for note in NoteBook(tmp_path, "ann").all()] == ["bob"]


def test_a_run_that_cannot_be_written_says_so(client: Client, run: RunDirectory) -> None:
    (run.root / "notes").symlink_to(run.root / "nowhere")  # where no folder can be made
    answer = add(client, text="lost")
    assert answer.status_code == 403
    assert "make it writable" in answer.json()["error"]
