"""Checkpoints that are written beside training: exact, on any number of ranks, and never torn."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from agentrl.controller.checkpoints import Checkpoints
from agentrl.errors import StoreError
from agentrl.training import DistSpec
from agentrl.training.fsdp import checkpoint
from agentrl.types import SegmentKind
from tests.kit.waiting import DEADLINE_S
from tests.training.checkpoint_rank import NAMES, roles, take_step, weights
from tests.training.harness import make_actor, make_batch, update, write_model
from tests.training.ranks import REPOSITORY, run_ranks

MODULE = "tests.training.checkpoint_rank"


@pytest.fixture(scope="module")
def resharded(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of two ranks, of which four go on and write their own."""
    folder = tmp_path_factory.mktemp("resharded")
    run_ranks(MODULE, 2, "write", model_path, str(folder))
    run_ranks(MODULE, 4, "go_on", model_path, str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_four_and_one_take_the_same_step(
    resharded: Path, model_path: str, name: str
) -> None:
    expected = torch.load(resharded / "written-0.pt")[name]
    four = torch.load(resharded / f"{name}-four-3.pt")
    role = roles(model_path, DistSpec())[name]
    role.load(resharded / "four" / name)
    before = weights(role)
    take_step(role, DistSpec())
    one = weights(role)
    assert role.steps == 3
    for key, weight in expected.items():
        assert (four[key] - weight).abs().max() <= 1e-6, key
        assert (one[key] - weight).abs().max() <= 1e-6, key
    assert max((one[key] - before[key]).abs().max() for key in one) > 5e-5


@pytest.mark.slow
def test_each_file_is_read_by_one_rank(resharded: Path) -> None:
    read = [(resharded / f"read-{rank}").read_text().split("\n") for rank in range(4)]
    files = [
        path.relative_to(resharded / "two").as_posix()
        for name in NAMES
        for path in (resharded / "two" / name).rglob("*")
        if path.is_file() and path.name != "files.json"
    ]
    assert sorted(one for own in read for one in own) == sorted(files)
    assert all(own != [""] for own in read)


@pytest.mark.slow
def test_a_checkpoint_is_of_its_step_though_training_goes_on(
    model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(kind=SegmentKind.TARGET)
    actor, resumed = (make_actor(model_path, "sft") for _ in range(2))
    update(actor, batch)
    go = threading.Event()
    write = checkpoint._write

    def late(*args: object, **named: object) -> None:
        assert go.wait(DEADLINE_S)
        write(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "_write", late)
    checksum = actor.checksum()
    actor.begin_save(tmp_path / "actor")
    assert actor.save_result(wait=False) is None
    uninterrupted = dict(update(actor, batch))
    assert actor.checksum() != checksum
    go.set()
    result = actor.save_result(wait=True)
    assert result is not None
    assert result.error is None
    resumed.load(tmp_path / "actor")
    assert resumed.checksum() == checksum
    assert dict(update(resumed, batch)) == uninterrupted
    # the memory of the copy serves the next one
    update(actor, batch)
    later = actor.checksum()
    actor.begin_save(tmp_path / "next")
    actor.save_result(wait=True)
    resumed.load(tmp_path / "next")
    assert resumed.checksum() == later


def test_files_are_hashed_as_they_are_written(
    model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    hashes = checkpoint.file_hashes

    def told(folder: Path, pattern: str) -> dict[str, object]:
        read.append(pattern)
        return hashes(folder, pattern)

    actor = make_actor(model_path, "sft")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "file_hashes", told)
        actor.save(tmp_path / "actor")
    assert read == [".metadata", "model/*"]
    checkpoint.check_whole(tmp_path / "actor")


@pytest.mark.slow
def test_what_one_rank_cannot_write_all_tell_at_once(
    model_path: str, tmp_path: Path
) -> None:
    run_ranks(MODULE, 2, "fail", model_path, str(tmp_path))
    for rank in range(2):
        error = (tmp_path / f"told-{rank}").read_text()
        assert error.startswith("DiskFullError: ")
        assert "the disk is full" in error
        assert not (tmp_path / "second" / "files.json").exists()
        refused = (tmp_path / f"refused-{rank}").read_text()
        assert "__1_0.distcp has " in refused
    checkpoint.check_whole(tmp_path / "first")


@pytest.mark.slow
def test_a_killed_run_keeps_the_checkpoint_before(model_path: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        MODULE,
        "0",
        "1",
        "0",
        "die",
        model_path,
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "step=000002" / "actor").is_dir()
    found = Checkpoints(tmp_path, keep_last=1).latest()
    assert found is not None
    folder, manifest = found
    assert manifest.state.step == 1
    role = roles(model_path, DistSpec())["actor"]
    role.load(folder / "actor")
    expected = torch.load(tmp_path / "weights-1.pt")
    assert all(
        torch.equal(weight, expected[name]) for name, weight in weights(role).items()
    )


def test_the_checkpoint_of_another_model_layout_or_role_is_refused(
    model_path: str, tmp_path: Path
) -> None:
    roles(model_path, DistSpec())["critic"].save(tmp_path / "critic")
    actor = make_actor(model_path, "sft")
    with pytest.raises(
        StoreError, match=r"another model or optimizer: 'model\.hf\.score\.weight'"
    ):
        actor.load(tmp_path / "critic")
    actor.save(tmp_path / "actor")
    wide = make_actor(str(write_model(tmp_path / "wide", intermediate_size=64)), "sft")
    with pytest.raises(StoreError, match="was it written for another model"):
        wide.load(tmp_path / "actor")
    listing = tmp_path / "actor" / "files.json"
    listing.write_text(listing.read_text().replace(checkpoint.LAYOUT, "megatron"))
    with pytest.raises(
        StoreError, match=r"layout 'megatron' and this agentrl reads 'torch\.dist"
    ):
        actor.load(tmp_path / "actor")
