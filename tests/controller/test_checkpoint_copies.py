"""Checkpoints are copied to a URL beside the steps; where there is none here, the newest is fetched
from there."""

from __future__ import annotations

import json
import os
import threading
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl.controller.checkpoints import Checkpoints
from agentrl.controller.checkpoints.checkpoint_copies import (
    CheckpointCopies,
    fetch_newest,
    fetch_run,
)
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.errors import ConfigError, HeldError, StoreError
from agentrl.store import RunDirectory
from agentrl.store.remote_folder import RemoteFolder
from agentrl.training.fsdp import checkpoint
from agentrl.training.fsdp.checkpoint_export import export_checkpoint
from tests.controller.remote import use_endpoint
from tests.controller.replay import learn
from tests.kit.forks import FORKS
from tests.kit.http import free_port
from tests.kit.waiting import DEADLINE_S, until

LAST = "checkpoints/rl/step=000003"


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty folder."""
    if request.param == "file":
        return f"file://{tmp_path}/elsewhere/runs/a"
    return str(request.getfixturevalue("s3_bucket"))


@pytest.fixture
def remote(url: str) -> RemoteFolder:
    return RemoteFolder(url, "url")


@pytest.fixture
def run(
    group: LocalRoleGroup,
    model: Path,
    tmp_path: Path,
    url: str,
    caplog: pytest.LogCaptureFixture,
) -> RunDirectory:
    """Three steps with a copied checkpoint of each, of which one is kept."""
    caplog.set_level("INFO", logger="agentrl")
    learn(group, model, tmp_path / "run", num_steps=3, checkpoint_every=1, copy_to=url)
    return RunDirectory.open(tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_fetched_checkpoint_is_the_newest_byte_by_byte(
    run: RunDirectory,
    remote: RemoteFolder,
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found_events = [getattr(one, "event", None) for one in caplog.get_records("setup")]
    assert found_events.count("checkpoint_copied") == 3
    assert remote.names("checkpoints/rl") == ["step=000003"]  # checkpoint.keep_last is 1
    fetched = fetch_newest(url, "rl", tmp_path / "fetched")
    assert fetched == tmp_path / "fetched" / "step=000003"
    assert contents(fetched) == contents(run.root / LAST)
    found = Checkpoints(tmp_path / "fetched", keep_last=1).latest()
    assert found is not None
    assert found[1].state.step == 3
    checkpoint.check_whole(fetched / "actor")


def test_a_run_directory_is_made_of_the_files_beside_the_copies(
    run: RunDirectory, url: str, tmp_path: Path
) -> None:
    made = RunDirectory(tmp_path / "made")
    assert fetch_run(url, made, ["rl"])
    assert RunDirectory.open(made.root).read_record() == run.read_record()
    assert made.metrics_path.read_text() in run.metrics_path.read_text()
    assert not fetch_run(url, RunDirectory(tmp_path / "none"), ["sft"])
    assert not (tmp_path / "none").exists()
    other = RunDirectory(tmp_path / "other")
    other.root.mkdir()
    (other.root / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"already holds files, such as thesis\.txt"):
        fetch_run(url, other, ["rl"])
    assert [path.name for path in other.root.iterdir()] == ["thesis.txt"]
    assert not list(tmp_path.glob(".other*"))


def _fetches(url: str, root: Path, told: Connection) -> None:
    """Fetches a run in a process of its own, and tells what came of it."""
    try:
        told.send(fetch_run(url, RunDirectory(root), ["rl"]))
    except HeldError as error:
        told.send(str(error))


def of_another_process(url: str, root: Path) -> bool | str:
    """What ``fetch_run`` returns there, or the error that it raises where it may not begin."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_fetches, args=(url, root, theirs))
    process.start()
    found: bool | str = ours.recv() if ours.poll(DEADLINE_S) else "nothing"
    process.join(DEADLINE_S)
    return found


@pytest.mark.slow
def test_of_two_that_fetch_a_run_at_once_one_is_refused(
    run: RunDirectory, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "made"
    get = RemoteFolder.get
    others: list[bool | str] = []

    def in_its_midst(self: RemoteFolder, name: str, to: Path) -> None:
        if not others:
            others.append(of_another_process(url, root))
            # what is half fetched is no run
            assert not root.exists()
        get(self, name, to)

    monkeypatch.setattr(RemoteFolder, "get", in_its_midst)
    assert fetch_run(url, RunDirectory(root), ["rl"])
    (told,) = others
    assert f"is held by another process ({os.getpid()} on " in str(told)
    assert RunDirectory.open(root).metrics_path.is_file()
    assert not list(tmp_path.glob(".made*"))


@pytest.mark.slow
def test_one_that_comes_late_takes_the_run_that_another_has_fetched(
    run: RunDirectory, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunDirectory(tmp_path / "made")
    hold = RunDirectory.held

    def late(self: RunDirectory) -> AbstractContextManager[None]:
        monkeypatch.setattr(RunDirectory, "held", hold)
        assert of_another_process(url, made.root) is True
        made.left_out_path.write_text("of the other", encoding="utf-8")
        return hold(self)

    monkeypatch.setattr(RunDirectory, "held", late)
    assert fetch_run(url, made, ["rl"])
    assert made.left_out_path.read_text(encoding="utf-8") == "of the other"
    assert not list(tmp_path.glob(".made*"))


@pytest.mark.slow
def test_what_a_death_left_of_a_fetch_is_in_no_run(
    run: RunDirectory, url: str, tmp_path: Path
) -> None:
    left = RunDirectory.create(tmp_path / ".made.part", {"seed": 7})
    left.summary_path.write_text("{}", encoding="utf-8")
    made = RunDirectory(tmp_path / "made")
    assert fetch_run(url, made, ["rl"])
    assert made.read_record() == run.read_record()
    assert not made.summary_path.exists()


def test_a_copy_without_its_manifest_never_was_one(
    run: RunDirectory, remote: RemoteFolder, url: str, tmp_path: Path
) -> None:
    remote.put(
        run.root / LAST / "actor" / "files.json", "checkpoints/rl/step=000004/files.json"
    )
    fetched = fetch_newest(url, "rl", tmp_path / "fetched")
    assert fetched is not None
    assert fetched.name == "step=000003"


@pytest.mark.parametrize("torn", ["missing", "cut"])
def test_a_torn_copy_is_refused_by_its_file(
    run: RunDirectory, remote: RemoteFolder, url: str, tmp_path: Path, torn: str
) -> None:
    name = "actor/__0_0.distcp"
    data = (run.root / LAST / name).read_bytes()
    remote.remove(f"{LAST}/{name}")
    told = f"{url}/{LAST}/{name} is missing"
    if torn == "cut":
        (tmp_path / "cut").write_bytes(data[:-5])
        remote.put(tmp_path / "cut", f"{LAST}/{name}")
        told = f"{url}/{LAST}/{name} has {len(data) - 5} bytes instead of {len(data)}"
    with pytest.raises(StoreError) as refused:
        fetch_newest(url, "rl", tmp_path / "fetched")
    assert str(refused.value).startswith(told)
    assert f"delete {url}/{LAST} to resume from the one before" in str(refused.value)
    assert list((tmp_path / "fetched").iterdir()) == []


def test_an_export_to_a_url_is_the_folder(
    run: RunDirectory, url: str, tmp_path: Path
) -> None:
    actor = run.root / LAST / "actor"
    to = RemoteFolder(f"{url}/model", "--to")
    size = export_checkpoint(actor, tmp_path / "folder", shard_bytes=20_000)
    assert export_checkpoint(actor, to.url, shard_bytes=20_000) == size
    names = to.names()
    assert names == sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert sum(name.endswith(".safetensors") for name in names) > 2
    for name in names:
        to.get(name, tmp_path / "got" / name)
        ours, theirs = (tmp_path / place / name for place in ("folder", "got"))
        if name.endswith(".safetensors"):  # its header may be in another order
            assert {key: one.tolist() for key, one in load_file(ours).items()} == {
                key: one.tolist() for key, one in load_file(theirs).items()
            }
        else:
            assert ours.read_bytes() == theirs.read_bytes()
    with pytest.raises(StoreError, match="must be new or empty"):
        export_checkpoint(actor, to.url)


def check_told(
    rows: list[dict[str, object]], run: Path, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    """Every copy failed, that was told and counted, and the checkpoints are here.

    The first copy begins at the second checkpoint at the latest, and is waited for at the third:
    the fourth row counts it then.
    """
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert sum(float(str(row.get("count/failed_checkpoints", 0))) for row in rows) > 0
    told = [
        one.getMessage()
        for one in caplog.records
        if getattr(one, "event", "") == "checkpoint_failed"
    ]
    assert len(told) == 4
    assert all(
        f"in {url}; the one before stays and the run goes on: " in one for one in told
    )
    assert "there is no copy of checkpoint" in told[0]
    events = RunDirectory.open(run).events_path.read_text(encoding="utf-8")
    found = [json.loads(line) for line in events.splitlines()]
    assert sum(one["event"] == "checkpoint_failed" for one in found) == 4
    found_here = Checkpoints(run / "checkpoints" / "rl", keep_last=1).latest()
    assert found_here is not None
    assert found_here[1].state.step == 4


def test_a_place_that_takes_nothing_is_told_and_the_run_goes_on(
    group: LocalRoleGroup, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    url = f"file://{tmp_path}/file/runs"
    rows = learn(
        group, model, tmp_path / "run", num_steps=4, checkpoint_every=1, copy_to=url
    )
    check_told(rows, tmp_path / "run", caplog, url)


def test_a_copy_that_was_given_up_holds_the_next_one_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), []

    def put(copies: CheckpointCopies, checkpoint: Path) -> int:
        begun.append(checkpoint.name)
        assert goes_on.wait(DEADLINE_S)
        return 0

    monkeypatch.setattr(CheckpointCopies, "_put", put)
    monkeypatch.setattr("agentrl.controller.checkpoints.checkpoint_copies._LONGEST_S", 0.01)
    copies = CheckpointCopies(f"file://{tmp_path}/to", RunDirectory(tmp_path / "run"), "rl")
    copies.begin(Path("step=000001"))
    failed = copies.failure(wait=True)
    assert failed is not None
    assert "took no copy in" in str(failed[1])
    copies.begin(Path("step=000002"))
    assert copies.failure(wait=True) is not None
    assert begun == ["step=000001"]
    goes_on.set()
    until(lambda: begun == ["step=000001", "step=000002"])


@pytest.mark.s3
def test_an_unreachable_bucket_is_told_and_the_run_goes_on(
    group: LocalRoleGroup,
    model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("s3fs", reason="needs s3fs (make s3)")
    use_endpoint(monkeypatch, f"http://127.0.0.1:{free_port()}")
    url = "s3://agentrl/runs/a"
    rows = learn(
        group, model, tmp_path / "run", num_steps=4, checkpoint_every=1, copy_to=url
    )
    check_told(rows, tmp_path / "run", caplog, url)
    assert "Could not connect" in caplog.text


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("runs/a", r"must be a URL, such as s3://bucket/folder, got 'runs/a'"),
        (
            "nothing://runs/a",
            r"cannot be reached from here: .*; install its package of fsspec",
        ),
    ],
)
def test_what_is_no_url_that_can_be_reached_is_refused(place: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"checkpoint\.copy_to.*{told}"):
        RemoteFolder(place, "checkpoint.copy_to")
