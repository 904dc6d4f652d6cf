"""A secret that the run masked in its texts is in no text that is decoded from ids."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from agentrl.cli.main import run as run_command_line
from agentrl.guards.secret_mask import SecretMask
from agentrl.store import (
    Annotation,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    write_json,
)
from agentrl.types import Segment, SegmentKind, Task, Turn
from agentrl.viewer.pieces import REDACTED_ID
from tests.kit.episodes import sampled, trajectory, turn, user
from tests.viewer.server.test_export_html import answers, exported
from tests.viewer.server.viewers import Client, viewing

SECRET = "sk-9f8e7d6c5b4a"
NAME = "SERVICE_API_KEY"
SAID = f"It is {SECRET}, they say."
TOLD = f"key={SECRET}\n"
ID = "70-0-0"


@pytest.fixture(params=["known", "unknown"])
def secret(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The writer knows the secret; the viewer does in one case alone."""
    monkeypatch.setenv(NAME, SECRET)
    return str(request.param)


def written(run: RunDirectory, tokenizer: Tokenizer) -> None:
    """A turn that says the secret, after one that a tool told it; tokens are bytes but for one
    that spans the secret's end."""

    def ids(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def told(index: int, observed: str, text: str) -> Turn:
        given = Segment(
            SegmentKind.OBSERVATION if index else SegmentKind.PROMPT, ids(observed)
        )
        policy = sampled(ids(text), version=1)
        return turn(index, [given], [policy], text, observed=(user(observed),))

    turns = told(0, "What is it?", "look"), told(1, TOLD, SAID), told(2, "Thanks.", "Bye.")
    task = Task("task-70", (user("What is it?"),))
    with TrajectoryWriter(run, "other") as writer:
        played = trajectory(*turns, group=70, task=task, stage="rl")
        writer.write(played, 5)
        size = played.num_policy_tokens
        loss = np.zeros(size, np.float32)
        loss[len("look") + SAID.index(SECRET) + 3] = 1.0
        arrays = {"loss_weight": np.ones(size, np.float32), "token_loss": loss}
        writer.annotate(Annotation(ID, 5, values={"stage": "rl"}, arrays=arrays))
        writer.seal(5)


def test_no_page_decodes_a_masked_secret(
    run: RunDirectory, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    written(run, tokenizer)
    if secret == "unknown":
        monkeypatch.delenv(NAME)
    with viewing(run.root) as address, Client(address) as client:
        [own] = client.get("/api/runs").json()["runs"]
        root = f"/api/runs/{own['key']}"
        tokens = client.get(f"{root}/tokens", params={"id": ID}).json()
        rendered = client.get(f"{root}/rendered", params={"id": ID}).json()
        group = client.get(f"{root}/group", params={"group_index": 70}).json()
        blamed = client.get(f"{root}/blame", params={"step": 5}).json()
        overview = client.get(f"{root}/overview").json()
        again = client.get(f"{root}/retokenise", params={"id": ID})
    text = "".join(tokens["pieces"])
    assert (
        text == rendered["sequences"][0]["text"] == "".join(group["tokens"][ID]["pieces"])
    )
    hidden = "█" * len(SECRET)
    if secret == "known":
        assert text == f"What is it?lookkey={hidden}\nIt is {hidden}, they say.Thanks.Bye."
    else:  # nobody knows which tokens are the secret's
        both = len(TOLD) + len(SAID)
        assert text == f"What is it?look{'█' * both}Thanks.Bye."
    assert any("masked" in why for why in tokens["missing"].values())
    assert [(row["text"], row["before"], row["after"]) for row in blamed["rows"]] == [
        ("█", "", "")
    ]
    assert again.status_code == 404
    assert "masked" in again.json()["error"]
    assert SECRET[:6] not in json.dumps([tokens, rendered, group, blamed, overview])
    # what training reads is whole
    kept = TrajectoryReader(run).get(ID).trajectory
    assert REDACTED_ID not in [
        i for one in kept.turns for s in one.segments for i in s.token_ids
    ]


def test_an_export_holds_neither_its_text_nor_its_ids(
    run: RunDirectory, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    written(run, tokenizer)
    if secret == "unknown":
        monkeypatch.delenv(NAME)
    kept = answers(exported(run, "--query", "step:5"))
    assert not [name for name, data in kept.items() if SECRET[:6].encode() in data]
    [tokens] = [json.loads(data) for name, data in kept.items() if "/tokens?" in name]
    assert tokens["pieces"].count("█") >= 2 * len(SECRET)


def test_a_run_without_its_tokenizer_hides_the_ids(
    run: RunDirectory, tokenizer: Tokenizer, secret: str
) -> None:
    written(run, tokenizer)
    write_json(run.record_path, {**run.read_record(), "tokenizers": {}})
    with viewing(run.root) as address, Client(address) as client:
        [own] = client.get("/api/runs").json()["runs"]
        tokens = client.get(f"/api/runs/{own['key']}/tokens", params={"id": ID}).json()
    assert tokens["pieces"].count("█") == len(TOLD) + len(SAID)


def test_show_and_diff_hide_it_too(
    run: RunDirectory,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    secret: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written(run, tokenizer)
    if secret == "unknown":
        monkeypatch.delenv(NAME)
    for arguments in (["show", str(run.root), ID], ["diff", str(run.root), ID, "2-0-0"]):
        assert run_command_line(arguments) == 0
        shown = capsys.readouterr().out
        assert SECRET[:6] not in shown
    assert run_command_line(["show", str(run.root), ID]) == 0
    assert "█" in capsys.readouterr().out


def test_what_the_policy_wrote_like_a_mark_is_no_secret(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    from tests.viewer.server.viewers import make_trajectory

    with TrajectoryWriter(run, "other") as writer:
        writer.write(make_trajectory(tokenizer, 50, prompt=f"What is <masked:{NAME}>?"), 5)
    with viewing(run.root) as address, Client(address) as client:
        [own] = client.get("/api/runs").json()["runs"]
        tokens = client.get(
            f"/api/runs/{own['key']}/tokens", params={"id": "50-0-0"}
        ).json()
    assert "█" not in tokens["pieces"]


def test_spans_are_those_that_are_masked() -> None:
    mask = SecretMask({"A_KEY": 'a"b c d e'})
    text = 'x a"b c d e and a\\"b c d e'
    assert [text[start:end] for start, end in mask.spans(text)] == [
        'a\\"b c d e',
        'a"b c d e',
    ]
