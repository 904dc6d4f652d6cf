"""Trajectory writer: stores what a run makes on a thread of its own, behind a bounded queue.

- ``write`` costs the caller an append to the queue; a full queue makes it wait, and the wait is
  counted.
- The queue drops neither trajectories nor annotations; ``store.keep`` may, once they are old.
- One lock guards the queue and all counts. Callers append and wait; the writer's thread alone
  encodes, touches the live files and seals them, without holding the lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from agentrl.errors import Closing, StoreError
from agentrl.guards.secret_mask import SecretMask
from agentrl.store.annotations.annotation import (
    Annotation,
    AnnotationColumn,
    check_annotation,
)
from agentrl.store.annotations.files import AnnotationFiles
from agentrl.store.disk import hold_name, write_failure
from agentrl.store.json_text import to_json
from agentrl.store.run_directory import RunDirectory, check_writer
from agentrl.store.store_spec import Detail, KeepSpec
from agentrl.store.trajectories.codec import encode_trajectory
from agentrl.store.trajectories.columns import SECRET_COLUMNS, Row
from agentrl.store.trajectories.files import TrajectoryFiles
from agentrl.store.trajectories.record_clock import RecordClock
from agentrl.store.trajectories.retention import Retention
from agentrl.types import Blob, Trajectory
from agentrl.types.user_code.place import described


@dataclass(slots=True)
class WriterCounts:
    """What a writer did so far.

    Args:
        written: trajectories that are in a live file or a shard.
        recovered: trajectories that an earlier writer of this name left unsealed, and this one
            sealed.
        annotations: annotations that are in a live file or a shard.
        wait_s: seconds that ``write`` and ``annotate`` waited for room (``time/wait_store_s``).
    """

    written: int = 0
    recovered: int = 0
    annotations: int = 0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """Work for the writer's thread.

    Args:
        work: is called once.
        counted: the count that it raises; such an entry also takes room in the queue.
    """

    work: Callable[[], None]
    counted: Literal["written", "annotations", ""] = ""


class TrajectoryWriter(Closing):
    """Stores trajectories while the run goes on.

    A failure behind the queue is raised by the next call and by every later one. What was sealed
    survives the death of the process, and so does what reached the live files: ``flush`` waits for
    them, and the next writer of the same name seals them.

    Args:
        run: where.
        writer: names this writer's files; one process at a time may use a name.
        keep: which of its trajectories stay once their step is old; by default all.
        detail: ``full`` keeps the experts of each token too.
        queue_size: trajectories and annotations held in memory.
        timeout_s: how long a call waits without any progress of the store.

    Raises:
        StoreError: another process writes under this name, or what an earlier one left cannot be
            sealed.
    """

    closing = "the store"

    def __init__(
        self,
        run: RunDirectory,
        writer: str = "driver",
        *,
        keep: KeepSpec | None = None,
        detail: Detail = "tokens",
        queue_size: int = 4096,
        timeout_s: float = 600.0,
    ) -> None:
        self._run = run
        self._writer = check_writer(writer)
        self._queue_size = queue_size
        self._timeout_s = timeout_s
        self._keeps_experts = detail == "full"
        self._mask = SecretMask()
        self._lock_file = hold_name(run.live_folder / f"{writer}.lock")
        self._files = TrajectoryFiles(run, writer)
        # Appended to by callers, taken by the thread, both under _lock; bounded by queue_size.
        self._queue: deque[_Entry] = deque()
        self._in_memory = 0
        self._issued = 0
        self._handled = 0
        self._error: StoreError | None = None
        self._closed = False
        self._awaited: list[int] = []
        self._room_told = min(64, max(1, queue_size // 4))
        """Places in the queue at which those who wait for room are told of it."""
        # Guards all of the above but the files. Those who wait for room or for an entry are woken
        # when there is some, not after each entry: every waking takes the interpreter's lock from
        # the thread that writes.
        self._lock = threading.Lock()
        self._queued = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        try:
            self._counts = WriterCounts(recovered=self._files.recover())
            self._annotations = AnnotationFiles(run, writer, self._mask)
            self._annotations.recover()
            self._retention = Retention(run, writer, keep or KeepSpec())
            self._clock = RecordClock(run.sealed_folder, run.annotations_folder)
        except BaseException:
            # The lock of the writer's name would else stay taken while this process lives.
            os.close(self._lock_file)
            raise
        # Replaced as a whole under _lock, read without it.
        self._columns = self._annotations.columns
        # Takes the entries in order and ends after the last; a daemon, so that a stuck disk holds
        # up no exit.
        self._thread = threading.Thread(
            target=self._work, name=f"store-{writer}", daemon=True
        )
        self._thread.start()

    @property
    def counts(self) -> WriterCounts:
        """What was done so far."""
        with self._lock:
            return replace(self._counts)

    @property
    def columns(self) -> Mapping[str, AnnotationColumn]:
        """Those that annotations may hold arrays of, by name."""
        return self._columns

    def write(self, trajectory: Trajectory, step: int) -> None:
        """Queue a trajectory that finished in ``step``.

        Raises:
            StoreError: the writer is closed or failed, or the store takes nothing for
                ``timeout_s``.
        """
        with self._lock:
            self._wait_for_room()
            # The clock is asked under the lock, so that times rise in the order of the queue.
            work = partial(self._store, trajectory, step, self._clock.now())
            self._put(_Entry(work, "written"))

    def keep_images(self, trajectories: Iterable[Trajectory]) -> None:
        """Writes the images of trajectories at once; those read from a store have no bytes.

        Raises:
            StoreError: one cannot be written.
        """
        for trajectory in trajectories:
            for image in trajectory.images().values():
                if image.data is not None:
                    self._run.write_blob(image.data)

    def declare(self, columns: Iterable[AnnotationColumn]) -> None:
        """Tell what annotations may hold; of two columns of a name the later counts.

        Raises:
            StoreError: the writer is closed or failed.
        """
        told = tuple(columns)
        with self._lock:
            self._assert_usable()
            self._columns = {**self._columns, **{column.name: column for column in told}}
            self._put(_Entry(partial(self._annotations.declare, told)))

    def annotate(self, annotation: Annotation) -> None:
        """Queue what was learned of a trajectory.

        Raises:
            StoreError: an array is not declared or has another form than its column, the writer is
                closed or failed, or the store takes nothing for ``timeout_s``.
        """
        check_annotation(annotation, self._columns)
        with self._lock:
            self._wait_for_room()
            work = partial(self._annotations.append, annotation, self._clock.now())
            self._put(_Entry(work, "annotations"))

    def seal(self, step: int, stage: str = "") -> None:
        """Queue the sealing of what was written and annotated for ``step`` so far; then what
        ``keep`` does not keep of older steps is dropped.

        Args:
            step: that has ended.
            stage: whose step it is, as its trajectories name it.

        Raises:
            StoreError: the writer is closed or failed.
        """
        with self._lock:
            self._assert_usable()
            self._put(_Entry(partial(self._files.seal, step)))
            self._put(_Entry(partial(self._annotations.seal, step)))
            self._put(_Entry(partial(self._retention.step_ended, stage, step)))

    def flush(self) -> None:
        """Wait until all that was queued is done, and durable.

        Raises:
            StoreError: the writer is closed or failed, or the store takes nothing for
                ``timeout_s``.
        """
        with self._lock:
            self._assert_usable()
            self._put(_Entry(self._sync))
            self._wait_until_handled()

    def close(self) -> None:
        """Seal what is left, then end the thread; a second call does nothing.

        Raises:
            StoreError: the writer failed, or the store takes nothing for ``timeout_s``; the live
                files stay.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._put(_Entry(self._files.seal_all))
            self._put(_Entry(self._annotations.seal_all))
        try:
            with self._lock:
                self._wait_until_handled()
        finally:
            self._thread.join(self._timeout_s)

    # what callers do under the lock

    def _put(self, entry: _Entry) -> None:
        self._queue.append(entry)
        self._in_memory += bool(entry.counted)
        self._issued += 1
        self._queued.notify()

    def _assert_usable(self) -> None:
        if self._closed:
            raise StoreError(f"the trajectory writer {self._writer!r} is closed")
        self._assert_sound()

    def _assert_sound(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error)) from self._error

    def _wait_for_room(self) -> None:
        self._assert_usable()
        started = time.monotonic()
        self._wait_until(lambda: self._in_memory < self._queue_size)
        self._assert_usable()
        if (waited := time.monotonic() - started) > 1e-3:
            self._counts.wait_s += waited

    def _wait_until_handled(self) -> None:
        ticket = self._issued
        self._awaited.append(ticket)
        try:
            self._wait_until(lambda: self._handled >= ticket)
        finally:
            self._awaited.remove(ticket)

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Waits as long as entries are handled.

        Raises:
            StoreError: the writer failed, or no entry was handled for ``timeout_s``.
        """
        while True:
            self._assert_sound()
            if ready():
                return
            handled = self._handled
            self._progress.wait(self._timeout_s)
            if self._handled == handled and self._error is None:
                raise StoreError(
                    f"the store has taken nothing for {self._timeout_s:g} s "
                    f"({self._issued - handled} entries wait); is the disk of {self._run.root} "
                    "there?"
                )

    def _fail(self, error: Exception, what: str) -> StoreError:
        waiting = self._issued - self._handled
        failure = write_failure(what, self._run.live_folder, error)
        self._error = type(failure)(
            f"{failure}; {waiting} entries for {self._run.root} were not stored: fix that, then "
            "--resume"
        )
        self._error.__cause__ = error
        self._progress.notify_all()
        return self._error

    # what the thread does

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    self._queued.wait_for(lambda: self._queue)
                    entry = self._queue.popleft()
                entry.work()
                with self._lock:
                    self._handled += 1
                    self._in_memory -= bool(entry.counted)
                    self._counts.written += entry.counted == "written"
                    self._counts.annotations += entry.counted == "annotations"
                    has_room = self._queue_size - self._in_memory == self._room_told
                    if has_room or self._handled in self._awaited or not self._queue:
                        self._progress.notify_all()
                    if self._closed and not self._queue:
                        return
        except Exception as error:  # noqa: BLE001
            # Whatever ended the thread is raised by the next call.
            with self._lock:
                self._fail(error, f"the trajectory writer {self._writer!r} failed")
        finally:
            self._files.close()
            self._annotations.close()
            self._retention.close()
            # While this thread may still write, nobody else writes under its name.
            os.close(self._lock_file)

    def _store(self, trajectory: Trajectory, step: int, recorded_at: float) -> None:
        if not self._keeps_experts:
            trajectory = trajectory.without_experts()
        self.keep_images([trajectory])
        try:
            row, arrays = encode_trajectory(trajectory, step=step, recorded_at=recorded_at)
        except Exception as error:
            # The run ends by it, and one of many thousands is to be found.
            raise StoreError(
                f"trajectory {trajectory.id!r} of task {trajectory.task.id!r} cannot be stored: "
                f"{described(error)}"
            ) from error
        for column in SECRET_COLUMNS:
            row[column] = self._mask(row[column])
        # A number that is a secret would tear the JSON apart.
        if self._mask(row["info_numbers"]) != row["info_numbers"]:
            row["info_numbers"] = "{}"
        self._keep_blobs(trajectory, row)
        self._files.append(step, row, arrays)

    def _keep_blobs(self, trajectory: Trajectory, row: Row) -> None:
        """Writes states and files, masked like every text; the row then names what was written.

        There may be thousands a step, so they are not synced one by one: the death of the process
        loses none, a power failure may.
        """
        blobs = {blob.sha256: blob for blob in trajectory.blobs() if blob.data is not None}
        for blob in blobs.values():
            # see above
            assert blob.data is not None
            data = self._mask.in_bytes(blob.data)
            self._run.write_blob(data, durable=False)
            if data != blob.data:
                for column in ("turns", "first_state"):
                    row[column] = row[column].replace(to_json(blob), to_json(Blob.of(data)))

    def _sync(self) -> None:
        self._files.sync()
        self._annotations.sync()
