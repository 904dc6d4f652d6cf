"""Trajectory writer: stores what a run makes on a thread of its own, behind a bounded queue.

- ``write`` costs the caller an append to the queue; a full queue makes it wait, and the wait is
  counted.
- A trajectory is never dropped; an annotation is, and counted, when the queue is full.
- One condition guards the queue and all counts. Callers append and wait; the writer's thread alone
  encodes, touches the live files and seals them, without holding the condition.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from agentrl.errors import Closing, StoreError
from agentrl.store.lock import hold_name
from agentrl.store.masking import SecretMask
from agentrl.store.run_directory import RunDirectory
from agentrl.store.trajectories.annotations import Annotation, encode_annotation
from agentrl.store.trajectories.codec import encode_trajectory
from agentrl.store.trajectories.live import FramedWriter
from agentrl.store.trajectories.sealing import StepFiles
from agentrl.store.write_error import write_failure
from agentrl.types import Trajectory

_MASKED_COLUMNS = ("status_detail", "prompt", "final_text", "turns", "task", "info")


@dataclass(slots=True)
class WriterCounts:
    """What a writer did so far.

    Args:
        written: trajectories that are in a live file or a shard.
        recovered: trajectories that an earlier writer of this name left unsealed, and this one
            sealed.
        annotations: annotations written.
        dropped_annotations: annotations lost because the queue was full.
        wait_s: seconds that ``write`` waited for room (``time/wait_store_s``).
    """

    written: int = 0
    recovered: int = 0
    annotations: int = 0
    dropped_annotations: int = 0
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
        queue_size: int = 4096,
        timeout_s: float = 600.0,
    ) -> None:
        self._run = run
        self._writer = writer
        self._queue_size = queue_size
        self._timeout_s = timeout_s
        self._mask = SecretMask()
        self._lock_file = hold_name(run.live_folder / f"{writer}.lock")
        self._files = StepFiles(run, writer)
        self._annotations: FramedWriter | None = None
        # Appended to by callers, taken by the thread, both under _changed; bounded by queue_size.
        self._queue: deque[_Entry] = deque()
        self._in_memory = 0
        self._issued = 0
        self._handled = 0
        self._error: StoreError | None = None
        self._closed = False
        # Guards all of the above but the files; notified when an entry is queued or handled, and on
        # failure.
        self._changed = threading.Condition()
        try:
            self._counts = WriterCounts(recovered=self._files.recover())
        except BaseException:
            os.close(self._lock_file)
            raise
        # Takes the entries in order and ends after the last; a daemon, so that a stuck disk holds
        # up no exit.
        self._thread = threading.Thread(target=self._work, name=f"store-{writer}", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> WriterCounts:
        """What was done so far."""
        with self._changed:
            return replace(self._counts)

    def write(self, trajectory: Trajectory, step: int) -> None:
        """Queue a trajectory that finished in ``step``.

        Raises:
            StoreError: the writer is closed or failed, or the store takes nothing for
                ``timeout_s``.
        """
        recorded_at = time.time()
        with self._changed:
            self._wait_for_room()
            work = partial(self._store, trajectory, step, recorded_at)
            self._put(_Entry(work, "written"))

    def annotate(self, annotation: Annotation) -> bool:
        """Queue what was learned of a trajectory; False, and counted, where the queue is full.

        Raises:
            StoreError: the writer is closed or failed.
        """
        with self._changed:
            self._assert_usable()
            if self._in_memory >= self._queue_size:
                self._counts.dropped_annotations += 1
                return False
            self._put(_Entry(partial(self._note, annotation, time.time()), "annotations"))
            return True

    def seal(self, step: int) -> None:
        """Queue the sealing of what was written for ``step`` so far.

        Raises:
            StoreError: the writer is closed or failed.
        """
        with self._changed:
            self._assert_usable()
            self._put(_Entry(partial(self._files.seal, step)))

    def flush(self) -> None:
        """Wait until all that was queued is done, and durable.

        Raises:
            StoreError: the writer is closed or failed, or the store takes nothing for
                ``timeout_s``.
        """
        with self._changed:
            self._assert_usable()
            self._put(_Entry(self._sync))
            self._wait_until_handled()

    def close(self) -> None:
        """Seal what is left, then end the thread; a second call does nothing.

        Raises:
            StoreError: the writer failed, or the store takes nothing for ``timeout_s``; the live
                files stay.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._put(_Entry(self._files.seal_all))
        try:
            with self._changed:
                self._wait_until_handled()
        finally:
            self._thread.join(self._timeout_s)
            os.close(self._lock_file)

    # what callers do under the lock

    def _put(self, entry: _Entry) -> None:
        self._queue.append(entry)
        self._in_memory += bool(entry.counted)
        self._issued += 1
        self._changed.notify_all()

    def _assert_usable(self) -> None:
        if self._closed:
            raise StoreError(f"the trajectory writer {self._writer!r} is closed")
        self._assert_sound()

    def _assert_sound(self) -> None:
        if self._error is not None:
            raise StoreError(str(self._error)) from self._error

    def _wait_for_room(self) -> None:
        self._assert_usable()
        started = time.monotonic()
        while self._in_memory >= self._queue_size:
            self._wait_for_progress()
            self._assert_usable()
        if (waited := time.monotonic() - started) > 1e-3:
            self._counts.wait_s += waited

    def _wait_until_handled(self) -> None:
        ticket = self._issued
        while self._handled < ticket:
            self._assert_sound()
            self._wait_for_progress()
        self._assert_sound()

    def _wait_for_progress(self) -> None:
        handled = self._handled
        moved = self._changed.wait_for(
            lambda: self._handled > handled or self._error is not None, self._timeout_s
        )
        if not moved:
            raise StoreError(
                f"the store has taken nothing for {self._timeout_s:g} s ({self._issued - handled} "
                f"entries wait); is the disk of {self._run.root} there?"
            )

    def _fail(self, error: Exception, what: str) -> StoreError:
        waiting = self._issued - self._handled
        failure = write_failure(what, self._run.root, error)
        self._error = type(failure)(
            f"{failure}; {waiting} entries for {self._run.root} were not stored: fix that, then "
            "--resume"
        )
        self._error.__cause__ = error
        self._changed.notify_all()
        return self._error

    # what the thread does

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue)
                    entry = self._queue.popleft()
                entry.work()
                with self._changed:
                    self._handled += 1
                    self._in_memory -= bool(entry.counted)
                    self._counts.written += entry.counted == "written"
                    self._counts.annotations += entry.counted == "annotations"
                    self._changed.notify_all()
                    if self._closed and not self._queue:
                        return
        except Exception as error:  # noqa: BLE001  whatever ended the thread is raised by the next call
            with self._changed:
                self._fail(error, f"the trajectory writer {self._writer!r} failed")
        finally:
            self._files.close()
            if self._annotations is not None:
                self._annotations.close()

    def _store(self, trajectory: Trajectory, step: int, recorded_at: float) -> None:
        for image in trajectory.images().values():
            if image.data is not None:  # else it was read from a store
                self._run.write_blob(image.data)
        row, arrays = encode_trajectory(trajectory, step=step, recorded_at=recorded_at)
        for column in _MASKED_COLUMNS:
            row[column] = self._mask(row[column])
        self._files.append(step, row, arrays)

    def _note(self, annotation: Annotation, recorded_at: float) -> None:
        if self._annotations is None:
            self._annotations = FramedWriter(self._run.annotations_path(self._writer))
        self._annotations.append(*encode_annotation(annotation, recorded_at))

    def _sync(self) -> None:
        self._files.sync()
        if self._annotations is not None:
            self._annotations.sync()
