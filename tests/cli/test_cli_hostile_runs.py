"""A run of a stranger's: what is no file of a run hides itself alone, and is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from agentrl.store import Heartbeat, RunDirectory
from agentrl.viewer.app import create_app

Agentrl = Callable[..., tuple[int, str, str]]

FILES = (
    "metrics.jsonl",
    "events.jsonl",
    "ledger.jsonl",
    "resumes.jsonl",
    "summary.json",
    "heartbeat.json",
    "now.json",
    "config.resolved.yaml",
    "notes/mallory.jsonl",
    "traj/live/step=000002/b-0001.jsonl",
    "traj/sealed/step=000002/b-0001.parquet",
    "traj/ann/live/step=000002/b-0001.jsonl",
    "traj/ann/sealed/step=000002/b-0001.parquet",
    "traj/ann/columns/b.json",
    "traj/dropped/b.jsonl",
)
SECRET = "the word of another's file"


def line(**more: object) -> str:
    alert = {
        "level": "warning",
        "event": "odd",
        "message": "a \udcff b",
        "step": 1,
        "id": "9-9-9",
    }
    return json.dumps({**alert, **more}) + "\n"


def linked(path: Path, target: Path) -> None:
    path.symlink_to(target)


MAKE: dict[str, Callable[[Path, Path], object]] = {
    "a FIFO": lambda path, _: os.mkfifo(path),
    "a device": lambda path, _: linked(path, Path("/dev/zero")),
    "a link": lambda path, outside: linked(path, outside),
    "a link to itself": lambda path, _: linked(path, path),
    "deep": lambda path, _: path.write_text(
        '{"step": 1, "x": ' * 900 + "1" + "}" * 900 + "\n"
    ),
    "deeper": lambda path, _: path.write_text("[" * 200_000 + "\n"),
    "other types": lambda path, _: path.write_text(
        line(step={"a": 1}, group_index=2**70, rewards="[1]", recorded_at="now", stage=[1])
        + line(level=[1], message={"a": 1}, time="x", **{"reward/mean": 10**400})
        + line(steps=3, id="\udcff", time=None, to=1, group_index=1, rollout_indices=[[1]])
    ),
    "tags": lambda path, _: path.write_text("!!python/object:os.system {a: *b}\n"),
    "no text": lambda path, _: path.write_bytes(b"\xff\xfe\x00\n{}\n"),
}


@pytest.fixture(params=MAKE)
def hostile(request: pytest.FixtureRequest, run_dir: Path, tmp_path: Path) -> Path:
    """The run with every file as the parameter says, but for two sound trajectories."""
    outside = tmp_path / "outside"
    outside.write_text(json.dumps({"step": 1, "level": "error", "message": SECRET}) + "\n")
    for name in FILES:
        path = run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        MAKE[request.param](path, outside)
    return run_dir


def test_every_command_shows_the_sound_part(
    agentrl: Agentrl, hostile: Path, tmp_path: Path
) -> None:
    code, out, err = agentrl("ls", hostile)
    assert (code, "5-0-0" in out, "5-1-0" in out) == (0, True, True), err
    sql = "SELECT id FROM trajectories UNION ALL SELECT message FROM events"
    code, query, err = agentrl("query", hostile, sql)
    assert (code, "5-0-0" in query, "passed over" in err) == (0, True, True), err
    code, tail, err = agentrl("tail", hostile)
    assert (code, "5-0-0" in tail) == (0, True), err
    code, _, err = agentrl("show", hostile)
    assert code in (0, 3), err
    code, top, err = agentrl("top", hostile)
    assert code == 0, err
    code, shown, err = agentrl("show", hostile, "5-0-0")
    assert (code, "answer 42" in shown) == (0, True), err
    code, _, err = agentrl("export", "html", hostile, tmp_path / "out.html")
    assert code == 0, err
    assert SECRET not in out + query + tail + top + (tmp_path / "out.html").read_text()


def test_the_viewer_lists_it_and_its_neighbours(hostile: Path, tmp_path: Path) -> None:
    neighbour = RunDirectory.create(tmp_path / "neighbour", {"seed": 1})
    app = create_app(tmp_path, token="secret")
    asking = TestClient(app, "http://localhost", headers={"Authorization": "Bearer secret"})
    rows = asking.get("/api/runs").json()["runs"]
    assert {row["name"] for row in rows} >= {neighbour.root.name, hostile.name}
    key = next(row["key"] for row in rows if row["name"] == hostile.name)
    for page in ("", "/overview", "/trajectories", "/notes"):
        assert asking.get(f"/api/runs/{key}{page}").status_code == 200, page
    assert asking.get(f"/api/runs/{key}").json()["damage"]


def test_one_bad_configuration_hides_no_other_run(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RunDirectory.create(tmp_path / "odd", {"command": 5})
    RunDirectory.create(tmp_path / "other", {"seed": 1}, "stages: !run [")
    (run_dir / "config.resolved.yaml").write_text(
        "stages: {a: [1]}\nmodel: 5\nstore: [1]\n"
    )
    app = create_app(tmp_path, token="secret")
    asking = TestClient(app, "http://localhost", headers={"Authorization": "Bearer secret"})
    rows = {row["name"]: row for row in asking.get("/api/runs").json()["runs"]}
    assert rows.keys() == {"run", "other", "odd"}
    assert "its files are none of a run" in rows["odd"]["error"]
    assert "run_unlisted" in [getattr(one, "event", "") for one in caplog.records]
    damage = asking.get(f"/api/runs/{rows['other']['key']}").json()["damage"]
    assert "config.resolved.yaml cannot be read: it is no YAML" in damage[0]


@pytest.mark.parametrize(
    "more",
    [
        {"blame": "loss"},
        {"blame": "loss", "step": None},
        {"blame": 5, "step": 1},
        {"query": 5, "stage": "rl"},
        {"trajectory": {"a": 1}},
        {"trajectories": 5},
        {"trajectories": [5]},
        {"time": 10**400},
    ],
    ids=lambda more: str(more)[:40],
)
def test_an_alert_with_odd_fields_leads_nowhere(
    agentrl: Agentrl, run_dir: Path, tmp_path: Path, more: dict[str, object]
) -> None:
    event = {"time": 1.0, "level": "warning", "event": "odd", "message": "hm", **more}
    (run_dir / "events.jsonl").write_text(json.dumps(event) + "\n")
    app = create_app(tmp_path, token="secret")
    asking = TestClient(app, "http://localhost", headers={"Authorization": "Bearer secret"})
    at = f"/api/runs/{asking.get('/api/runs').json()['runs'][0]['key']}"
    overview = asking.get(f"{at}/overview")
    assert overview.status_code == 200
    damage = asking.get(at).json()["damage"]
    links = [one["link"] for one in overview.json()["alerts"]]
    # an alert without a step is one all the same
    assert links == ([] if damage else [{"page": "overview"}])
    assert agentrl("tail", run_dir)[0] == 0


@pytest.mark.parametrize(
    "more", [{"period_s": "x"}, {"counter": None}, {"stage": 5}, {"end": 1}], ids=str
)
def test_a_heartbeat_with_odd_fields_is_none(
    agentrl: Agentrl, run_dir: Path, more: dict[str, object]
) -> None:
    with Heartbeat(RunDirectory(run_dir)):
        pass
    beat = run_dir / "heartbeat.json"
    beat.write_text(json.dumps({**json.loads(beat.read_text()), "end": "", **more}))
    for command in ("show", "top", "tail"):
        code, out, err = agentrl(command, run_dir)
        assert (code, "finished" in out) == (0, True), err


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_note_follows_no_link_out_of_the_run(
    run_dir: Path, tmp_path: Path, link: str
) -> None:
    from agentrl.viewer.notes import NoteBook
    from agentrl.viewer.viewer_error import ViewerError

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "me.jsonl"
    victim.write_text("mine\n")
    notes = run_dir / "notes"
    if link == "folder":
        linked(notes, elsewhere)
    else:
        notes.mkdir()
        linked(notes / "me.jsonl", victim)
    with pytest.raises(ViewerError, match="the note was not kept"):
        NoteBook(notes, "me").add({"trajectory": "5-0-0", "text": "seen"})
    assert victim.read_text() == "mine\n"


HIDDEN = "a\u202eb\U000e0041c\u2066d\udcffe\x9bf"


def test_what_hides_or_steers_is_told_by_its_number(
    agentrl: Agentrl, run_dir: Path
) -> None:
    event = {"level": "warning", "event": "odd", "message": HIDDEN}
    (run_dir / "events.jsonl").write_text(json.dumps(event) + "\n")
    _, people, _ = agentrl("tail", run_dir)
    _, program, _ = agentrl("tail", run_dir, "--json")
    assert r"a\u202eb\U000e0041c\u2066d\udcffe\x9bf".replace(r"\x9b", r"\u009b") in people
    assert not set(people + program) & set(HIDDEN[1::2])
    assert HIDDEN in [json.loads(own).get("message") for own in program.splitlines()]
