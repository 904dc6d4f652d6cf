"""Trajectory writer: what it keeps, when it waits and fails, and what a death leaves."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from agentrl.errors import StoreError
from agentrl.store import Annotation, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.store.step_files import FramedWriter
from agentrl.types import RoutingShape, Trajectory
from tests.kit.waiting import DEADLINE_S, until

Make = Callable[..., Trajectory]


def shards(run: RunDirectory) -> list[str]:
    return sorted(
        str(path.relative_to(run.sealed_folder))
        for path in run.sealed_folder.rglob("*.parquet")
    )


def ids(run: RunDirectory) -> list[str]:
    return [summary.id for summary in TrajectoryReader(run).summaries()]


def live_files(run: RunDirectory) -> list[Path]:
    return sorted(
        path for path in run.live_folder.rglob("*") if path.suffix in (".jsonl", ".zst")
    )


def test_a_sealed_step_is_a_shard_and_no_live_file(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        for group_index in range(3):
            writer.write(make(group_index), 7)
        writer.seal(7)
        writer.flush()

        assert shards(run) == ["step=000007/driver-0001.parquet"]
        assert live_files(run) == []
        assert pq.read_metadata(run.shard_path(7, "driver", 1)).num_rows == 3


@pytest.mark.parametrize(("detail", "kept"), [("full", True), ("tokens", False)])
def test_experts_are_kept_at_full_detail_alone(
    run: RunDirectory, make: Make, detail: Any, kept: bool
) -> None:
    shape = RoutingShape(layers=2, experts=9, top_k=3)
    plain = make(0)
    (turn,) = plain.turns
    record = np.random.default_rng(0).integers(0, 9, (4, 2, 3)).astype(np.uint8)
    (prompt,) = turn.context
    routed = replace(turn, context=(prompt.with_experts(record),))
    with TrajectoryWriter(run, detail=detail) as writer:
        writer.write(replace(plain, turns=(routed,)), 0)

    stored = TrajectoryReader(run).get(plain.id)
    found = stored.trajectory.turns[0].context[0].routed_experts
    assert (found is not None) == kept
    if found is not None:
        assert (found == record).all()
        assert shape.fault(found) == ""


def test_a_shard_has_groups_of_32_rows(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        for group_index in range(70):
            writer.write(make(group_index), 0)

    metadata = pq.read_metadata(run.shard_path(0, "driver", 1))
    assert [
        metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)
    ] == [
        32,
        32,
        6,
    ]


def test_a_row_group_has_at_most_2_mb_unless_one_row_is_larger(
    run: RunDirectory, make: Make
) -> None:
    sizes = [100, 40_000, 40_000, 40_000, 200_000, 100, 100]  # tokens, at 17 bytes each
    with TrajectoryWriter(run) as writer:
        for group_index, num_tokens in enumerate(sizes):
            writer.write(make(group_index, num_tokens=num_tokens), 0)

    metadata = pq.read_metadata(run.shard_path(0, "driver", 1))
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [3, 1, 1, 2]
    assert all(group.total_byte_size < 2_000_000 or group.num_rows == 1 for group in groups)
    reader = TrajectoryReader(run)
    for group_index, num_tokens in enumerate(sizes):
        trajectory = reader.get(f"{group_index}-0-0").trajectory
        assert trajectory.group_index == group_index
        assert trajectory.sequence(0).size == num_tokens + 2


def test_a_seal_leaves_other_steps_live(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 1)
        writer.write(make(1), 2)
        writer.seal(1)
        writer.flush()

        assert [path.relative_to(run.live_folder).parts[0] for path in live_files(run)] == [
            "step=000002"
        ] * 2
        assert ids(run) == ["0-0-0", "1-0-0"]


def test_what_comes_after_the_seal_makes_another_shard(
    run: RunDirectory, make: Make
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 1)
        writer.seal(1)
        writer.write(make(1), 1)

    assert shards(run) == [
        "step=000001/driver-0001.parquet",
        "step=000001/driver-0002.parquet",
    ]


def test_sealing_a_step_without_trajectories_makes_nothing(run: RunDirectory) -> None:
    with TrajectoryWriter(run) as writer:
        writer.seal(1)
        writer.flush()

        assert list(run.sealed_folder.iterdir()) == []


def test_close_seals_what_is_left(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 1)
        writer.write(make(1), 2)

    assert shards(run) == [
        "step=000001/driver-0001.parquet",
        "step=000002/driver-0001.parquet",
    ]


def test_a_closed_writer_says_so(run: RunDirectory, make: Make) -> None:
    writer = TrajectoryWriter(run)
    writer.close()
    writer.close()

    with pytest.raises(StoreError, match="'driver' is closed"):
        writer.write(make(0), 0)


def test_secrets_are_masked_in_text(
    run: RunDirectory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hf_0123456789")
    with TrajectoryWriter(run) as writer:
        writer.write(
            make(0, text="the token is hf_0123456789", info={"env": 'x="hf_0123456789"'}), 0
        )

    stored = TrajectoryReader(run).get("0-0-0").trajectory
    assert stored.turns[0].text == "the token is <masked:HUB_TOKEN>"
    assert stored.info == {"env": 'x="<masked:HUB_TOKEN>"'}
    assert b"hf_0123456789" not in run.shard_path(0, "driver", 1).read_bytes()


class Gate:
    """Holds the store's thread before its next record, as a stuck disk would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        append = FramedWriter.append

        def held(files: FramedWriter, record: Mapping[str, Any], arrays: bytes) -> None:
            self.reached.set()
            assert self._open.wait(DEADLINE_S)
            append(files, record, arrays)

        monkeypatch.setattr(FramedWriter, "append", held)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    held = Gate(monkeypatch)
    yield held
    held.open()


def test_a_full_queue_makes_write_wait_counts_it_and_loses_nothing(
    run: RunDirectory, make: Make, gate: Gate
) -> None:
    with TrajectoryWriter(run, queue_size=2) as writer:
        for group_index in range(2):
            writer.write(make(group_index), 0)
        assert writer.counts.wait_s == 0.0

        def write_rest() -> None:
            for group_index in range(2, 6):
                writer.write(make(group_index), 0)

        waiting = threading.Thread(target=write_rest)
        waiting.start()
        assert gate.reached.wait(DEADLINE_S)
        waiting.join(0.05)
        assert waiting.is_alive()
        gate.open()
        waiting.join(DEADLINE_S)
        assert not waiting.is_alive()
        writer.seal(0)
        writer.flush()
        assert writer.counts.written == 6
        assert writer.counts.wait_s > 0

    column = pq.read_table(
        run.shard_path(0, "driver", 1), columns=["group_index"], partitioning=None
    )
    assert column["group_index"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert len(list(TrajectoryReader(run).get_many(ids(run)))) == 6


def test_no_more_than_the_queue_holds_is_in_memory(
    run: RunDirectory, make: Make, gate: Gate
) -> None:
    offered: list[int] = []
    with TrajectoryWriter(run, queue_size=3) as writer:

        def write_all() -> None:
            for group_index in range(9):
                offered.append(group_index)
                writer.write(make(group_index), 0)

        writing = threading.Thread(target=write_all)
        writing.start()
        assert gate.reached.wait(DEADLINE_S)
        writing.join(0.2)
        assert len(offered) == 4  # three queued or in the thread, and the one that waits
        gate.open()
        writing.join(DEADLINE_S)
        writer.flush()
        assert writer.counts.written == 9


def test_a_store_that_takes_nothing_is_named(
    run: RunDirectory, make: Make, gate: Gate
) -> None:
    writer = TrajectoryWriter(run, queue_size=2, timeout_s=0.2)
    writer.write(make(0), 0)
    writer.write(make(1), 0)

    with pytest.raises(StoreError, match=r"taken nothing for 0\.2 s \(2 entries wait\)"):
        writer.write(make(2), 0)

    with pytest.raises(StoreError, match="taken nothing"):
        writer.close()
    # its thread may still write, so that the name stays taken until it has ended
    other = f"from agentrl.store.disk import hold_name; hold_name(Path({str(run.live_folder)!r}) / "
    code = f"from pathlib import Path; {other}'driver.lock')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "driver.lock is held by another process" in told.stderr
    gate.open()
    until(
        lambda: (
            not subprocess.run([sys.executable, "-c", code], capture_output=True).returncode
        )
    )


def test_an_annotation_waits_for_room_and_is_never_dropped(
    run: RunDirectory, gate: Gate
) -> None:
    with TrajectoryWriter(run, queue_size=3) as writer:
        offered: list[int] = []

        def annotate_all() -> None:
            for number in range(9):
                offered.append(number)
                writer.annotate(Annotation(f"{number}-0-0", 1))

        annotating = threading.Thread(target=annotate_all)
        annotating.start()
        assert gate.reached.wait(DEADLINE_S)
        annotating.join(0.2)
        assert len(offered) == 4
        gate.open()
        annotating.join(DEADLINE_S)
        writer.flush()
        assert writer.counts.annotations == 9
        assert writer.counts.wait_s > 0.1
    assert len(list(TrajectoryReader(run).annotations(step=1))) == 9


def test_a_disk_that_refuses_is_raised_by_the_next_call(
    run: RunDirectory, make: Make
) -> None:
    writer = TrajectoryWriter(run)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # the kernel itself refuses to let any file of this process grow beyond this
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, old[1]))
        writer.write(make(0, num_tokens=1000, text="x" * 4000), 0)
        with pytest.raises(
            StoreError,
            match=r"'driver' failed: File too large; .* were not stored: fix that",
        ):
            writer.flush()
        with pytest.raises(StoreError, match="File too large"):
            writer.write(make(1), 0)
        with pytest.raises(StoreError, match="File too large"):
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_failure_does_not_hide_the_error_that_ended_the_run(
    run: RunDirectory, make: Make
) -> None:
    side = {"x": np.array([object()] * 4)}
    bad = make(0)
    turn = bad.turns[0]
    segment = type(turn.context[0])(
        turn.context[0].kind, turn.context[0].token_ids, side=side
    )
    unstorable = make(0, turns=(type(turn)(0, None, (segment,), (), "", turn.message),))

    def fail() -> None:
        with TrajectoryWriter(run) as writer:
            writer.write(unstorable, 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        fail()

    (note,) = raised.value.__notes__
    assert "and the store failed" in note
    assert (
        f"trajectory '0-0-0' of task {bad.task.id!r} cannot be stored: StoreError: side"
        in note
    )


WRITE_AND_DIE = """
    import os, sys
    from agentrl.store import RunDirectory, TrajectoryWriter
    from agentrl.types import *
    run = RunDirectory.open(sys.argv[1])
    writer = TrajectoryWriter(run)
    def made(draw):
        segment = Segment(SegmentKind.POLICY, [draw] * 50, [-0.5] * 50, 0)
        turn = Turn(0, None, (), (segment,), "x", {"role": "assistant", "content": "x"})
        return Trajectory(Task("t"), draw, 0, 0, "train", (turn,), Status("terminated"), reward=1.0)
    for draw in range(10):
        writer.write(made(draw), 1)
    writer.seal(1)
    for draw in range(10, 15):
        writer.write(made(draw), 2)
    writer.flush()
    print("flushed", flush=True)
    for draw in range(15, 100000):
        writer.write(made(draw), 2)
"""


def killed(run: RunDirectory) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITE_AND_DIE), str(run.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "flushed\n"
        process.send_signal(signal.SIGKILL)


def test_after_sigkill_the_reader_has_all_that_was_flushed(run: RunDirectory) -> None:
    killed(run)

    found = ids(run)
    assert found[:15] == [f"{group_index}-0-0" for group_index in range(15)]
    assert found == [f"{group_index}-0-0" for group_index in range(len(found))]
    assert len(list(TrajectoryReader(run).get_many(found))) == len(found)


def test_after_sigkill_the_next_writer_seals_what_was_left(run: RunDirectory) -> None:
    killed(run)
    before = ids(run)

    with TrajectoryWriter(run) as writer:
        assert writer.counts.recovered == len(before) - 10
        assert live_files(run) == []

    assert ids(run) == before


def test_a_torn_tail_is_all_that_a_death_costs(run: RunDirectory, make: Make) -> None:
    path = run.live_folder / "step=000004" / "driver-0001.jsonl"
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 4)
        writer.flush()
        line = path.read_bytes()
        frame = path.with_suffix(".zst").read_bytes()
    path.parent.mkdir()
    run.shard_path(4, "driver", 1).unlink()
    path.write_bytes(line + line[:30])
    path.with_suffix(".zst").write_bytes(frame + frame[:9])

    assert ids(run) == ["0-0-0"]
    with TrajectoryWriter(run) as writer:
        assert writer.counts.recovered == 1
    assert ids(run) == ["0-0-0"]


def test_a_line_whose_frame_the_disk_lost_is_torn_too(
    run: RunDirectory, make: Make
) -> None:
    path = run.live_folder / "step=000004" / "driver-0001.jsonl"
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 4)
        writer.write(make(1), 4)
        writer.flush()
        lines, frames = path.read_bytes(), path.with_suffix(".zst").read_bytes()
    run.shard_path(4, "driver", 1).unlink()
    path.parent.mkdir()
    path.write_bytes(lines)
    path.with_suffix(".zst").write_bytes(frames[:-1])

    assert ids(run) == ["0-0-0"]
    with TrajectoryWriter(run) as writer:
        assert writer.counts.recovered == 1


def test_a_death_between_the_shard_and_its_live_file_repeats_nothing(
    run: RunDirectory, make: Make
) -> None:
    path = run.live_folder / "step=000004" / "driver-0001.jsonl"
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 4)
        writer.flush()
        line, frame = path.read_bytes(), path.with_suffix(".zst").read_bytes()
    path.parent.mkdir()
    path.write_bytes(line)
    path.with_suffix(".zst").write_bytes(frame)
    assert ids(run) == ["0-0-0"]

    with TrajectoryWriter(run) as writer:
        assert writer.counts.recovered == 0

    assert shards(run) == ["step=000004/driver-0001.parquet"]
    assert live_files(run) == []


def test_a_death_while_a_live_file_is_removed_leaves_nothing_for_long(
    run: RunDirectory, make: Make
) -> None:
    path = run.live_folder / "step=000004" / "driver-0001.jsonl"
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 4)
    path.parent.mkdir()
    path.with_suffix(".zst").write_bytes(b"frames")

    TrajectoryWriter(run).close()

    assert live_files(run) == []
    assert ids(run) == ["0-0-0"]


def test_one_process_at_a_time_uses_a_name(run: RunDirectory) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from agentrl.store import *; TrajectoryWriter(RunDirectory.open(sys.argv[1]))",
    ]
    with TrajectoryWriter(run):
        result = subprocess.run(
            [*command, str(run.root)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    assert "driver.lock is held by another process" in result.stderr
