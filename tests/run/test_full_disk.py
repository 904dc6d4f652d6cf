"""A disk that is full at a checkpoint: a sentence that says so, and the checkpoint before it
stands.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import DiskFullError, StoreError
from agentrl.store import write_failure
from tests.run.tiny_run import CONFIG
from tests.store.test_killed_writer import in_namespace

TOO_SMALL = 1_500_000
"""Bytes: room for the run and some of its checkpoints."""


@pytest.mark.slow
def test_a_full_disk_at_a_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    config, disk = tmp_path / "config.yaml", tmp_path / "disk"
    config.write_text(CONFIG, encoding="utf-8")
    disk.mkdir()
    small = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--size",
        str(TOO_SMALL),
        "--tmpfs",
        str(disk),
    ]
    often = ("checkpoint.every=1", "checkpoint.keep_last=100", "run.deterministic=false")
    done = subprocess.run(
        [
            *small,
            sys.executable,
            "-m",
            "agentrl",
            "train",
            str(config),
            f"run.dir={disk}/run",
            *often,
        ],
        capture_output=True,
        text=True,
    )
    if "bwrap: " in done.stderr:
        pytest.skip(f"bubblewrap makes no namespace here: {done.stderr}")
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("error: ")
    assert f"the disk is full (0.0 of 1.5 MB are free at {disk}/run" in done.stderr
    assert done.stderr.count("\n") == 2  # neither a traceback nor torch's words
    assert f"\nthe checkpoint {disk}/run/checkpoints/warmup/step=0000" in done.stderr
    assert " stands; go on with: `agentrl train " in done.stderr


@pytest.mark.slow
def test_a_disk_that_trajectories_filled_ends_the_run_with_a_checkpoint(
    tmp_path: Path,
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(CONFIG, encoding="utf-8")
    (run / "traj").mkdir(parents=True)  # the checkpoints lie on another disk
    small = ["bwrap", "--dev-bind", "/", "/", "--size", "40000", "--tmpfs", f"{run}/traj"]
    command = [
        *small,
        sys.executable,
        "-m",
        "agentrl",
        "train",
        str(config),
        f"run.dir={run}",
    ]
    done = subprocess.run(
        [*command, "run.deterministic=false"], capture_output=True, text=True
    )
    if "bwrap: " in done.stderr:
        pytest.skip(f"bubblewrap makes no namespace here: {done.stderr}")
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("error: ")
    assert f"MB are free at {run}/traj" in done.stderr
    assert done.stderr.count("\n") == 2
    assert f"\nthe checkpoint {run}/checkpoints/" in done.stderr
    assert " stands; go on with: `agentrl train " in done.stderr


FILL_THE_LEDGER = """
    import sys
    from pathlib import Path
    from agentrl.controller.ledger import Ledger
    from agentrl.errors import DiskFullError
    path = Path(sys.argv[1]) / "ledger.jsonl"
    filler = path.with_name("filler")
    filler.write_bytes(bytes(50_000))
    def tell(call):
        try:
            call()
        except DiskFullError as error:
            print(error)
    def fill():
        while True:
            ledger.issue("main", ledger.offset, 64)
    ledger = Ledger(path)
    tell(fill)
    tell(ledger.sync)
    filler.unlink()
    tell(fill)
    ledger.close()
    ledger = Ledger(path)
    tell(fill)
    tell(ledger.close)
"""


def test_a_disk_that_the_ledger_fills_is_named_and_a_lost_row_is_the_last(
    tmp_path: Path,
) -> None:
    small = ["--size", "100000", "--tmpfs", str(tmp_path)]
    told = in_namespace(small, FILL_THE_LEDGER, str(tmp_path))
    full = f"{tmp_path}/ledger.jsonl cannot be written: the disk is full (0.0 of 0.1 MB are free at"
    assert [line.startswith(full) for line in told] == [True] * 5


def test_a_full_disk_is_named_whoever_swallowed_its_number(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    wrapped = RuntimeError("unexpected pos 64 vs 0")
    wrapped.__context__ = full
    for error in (full, wrapped):
        found = write_failure("it could not be written", tmp_path / "not" / "there", error)
        assert isinstance(found, DiskFullError)
        assert "unexpected pos" not in str(found)
        assert found.exit_code == 4


OUT_OF_INODES = """
import sys
from pathlib import Path
from agentrl.store import write_failure
disk = Path(sys.argv[1])
try:
    for number in range(9):
        (disk / str(number)).touch()
except OSError as error:
    print(write_failure("it could not be written", disk, error))
"""


def test_a_disk_without_inodes_is_not_called_full(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o nr_inodes=4,size=8m none {tmp_path} && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    inner = [sys.executable, "-c", OUT_OF_INODES, str(tmp_path)]
    done = subprocess.run([*command, *inner], capture_output=True, text=True)
    if "unshare: " in done.stderr:
        pytest.skip(f"unshare makes no namespace here: {done.stderr}")
    assert done.stdout == (
        "it could not be written: the disk has no room for another file (0 of 4 inodes are free at "
        f"{tmp_path}, and 8.4 MB); remove files there, or move the run directory, then go on with "
        "--resume\n"
    )


def test_another_failure_keeps_its_own_words(tmp_path: Path) -> None:
    found = write_failure(
        "it could not be written", tmp_path, PermissionError(13, "Permission denied")
    )
    assert (type(found), str(found)) == (
        StoreError,
        "it could not be written: Permission denied",
    )
