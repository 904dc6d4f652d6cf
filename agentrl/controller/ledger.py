"""Ledger: records where every trajectory of a run is, in an append-only file that always balances.

A row moves rollouts of one group to a state (docs/controller.md, Ledger). A trajectory is (attempt
of the run, policy that is trained by it, group index, rollout index). Always: issued = running +
finished + buffered + taken + trained + failed + cancelled + dropped + rolled_back.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, get_args

from agentrl.errors import StoreError
from agentrl.rollouts import KILLS_WORKER
from agentrl.store.disk import write_failure, write_refusals
from agentrl.types import Trajectory, TrajectoryGroup
from agentrl.types.user_code.values import shown

LedgerState = Literal[
    "running",
    "finished",
    "buffered",
    "taken",
    "trained",
    "failed",
    "cancelled",
    "dropped",
    "rolled_back",
]
_STATES = get_args(LedgerState)

_KEYS = {"attempt", "policy", "group_index", "rollout_indices", "to"}

_NEXT: Mapping[str, frozenset[str]] = {
    "": frozenset({"running"}),
    "running": frozenset({"finished", "failed", "cancelled", "dropped"}),
    "finished": frozenset({"buffered", "dropped"}),
    "buffered": frozenset({"taken", "dropped"}),
    "taken": frozenset({"trained", "dropped"}),
}


class Ledger:
    """Appends rows ``{"n", "attempt", "policy", "group_index", "rollout_indices", "to", ...}``.

    ``n`` is the row's offset.

    Args:
        path: ``ledger.jsonl``; an existing one is read back and must balance.

    Raises:
        StoreError: a row that is no ledger row (a partial last line is cut off: it never happened);
            or the file cannot be written, as of every method that does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._history: dict[tuple[int, str, int, int], list[tuple[int, str]]] = {}
        self._trained: set[tuple[str, int, int]] = set()
        self.offset = 0
        """Rows written so far; a checkpoint remembers it."""
        # guards the states and the file: the service's thread moves groups, the loop's thread
        # trains and restores them
        self._lock = threading.RLock()
        self.attempt = 0
        self._lost: StoreError | None = None
        """Why a row is not in the file."""
        if path.exists():
            self._read()
        with write_refusals(path):
            self._file: IO[bytes] = path.open("ab")

    def issue(
        self, policy: str, group_index: int, num_rollouts: int, **detail: object
    ) -> None:
        """A group is given to a runner; ``policy`` is to be trained by it.

        Raises:
            StoreError: a rollout of it was trained in an earlier attempt of this lineage and not
                rolled back.
        """
        with self._lock:
            again = [
                s for s in range(num_rollouts) if (policy, group_index, s) in self._trained
            ]
            if again:
                raise StoreError(
                    f"{self._path}: group {group_index} was trained before (rollouts {again}); "
                    "it is never again"
                )
            self.move(policy, group_index, range(num_rollouts), "running", **detail)

    def move(
        self,
        policy: str,
        group_index: int,
        rollout_indices: Iterable[int],
        to: LedgerState,
        **detail: object,
    ) -> None:
        """Moves rollouts of a policy's group to a state.

        Raises:
            StoreError: a transition that cannot be, such as training a trajectory twice.
        """
        chosen = list(rollout_indices)
        if chosen:
            with self._lock:
                self._append((self.attempt, policy, group_index), chosen, to, **detail)

    def enter_ends(self, group: TrajectoryGroup) -> None:
        """The rollouts of a running group have finished, failed or been cancelled, or it killed its
        workers and is dropped."""
        rewarded = {trajectory.rollout_index for trajectory in group.rewarded}
        for trajectory in group.trajectories:
            status = trajectory.status
            if trajectory.rollout_index not in rewarded:
                ended: LedgerState = "cancelled" if status.kind == "cancelled" else "failed"
                detail = {"reason": status.reason}
                if status.reason == KILLS_WORKER:
                    ended = "dropped"
                    detail["task"] = group.task.id
                self.move_group(group, ended, trajectory, **detail)
        self.move_group(group, "finished")
        # The greedy rollout has served as a baseline by now, and is never trained.
        if (greedy := group.baseline) is not None:
            self.move_group(group, "finished", greedy)
            self.move_group(group, "dropped", greedy, reason="baseline")

    def move_group(
        self,
        group: TrajectoryGroup,
        to: LedgerState,
        *rollouts: Trajectory,
        **detail: object,
    ) -> None:
        """Moves rollouts of a group, by default the finished ones."""
        chosen = [one.rollout_index for one in rollouts or group.finished]
        self.move(group.policy, group.group_index, chosen, to, **detail)

    def trained_groups(self, groups: Iterable[TrajectoryGroup], step: int) -> None:
        """The finished rollouts of groups were trained in ``step``; durable when this returns."""
        for group in groups:
            self.move_group(group, "trained", step=step)
        self.sync()

    def sync(self) -> None:
        """Makes everything written so far durable."""
        with self._lock, write_refusals(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def counts(self) -> Counter[str]:
        """Trajectories in each state, over all attempts."""
        with self._lock:
            return Counter(history[-1][1] for history in self._history.values())

    def restore(self, offset: int) -> None:
        """Starts the next attempt at a checkpoint's offset.

        What came later, and what was still open at it, is rolled back; what had come to its end by
        then stands.
        """
        # A run goes back before its stages begin, so no other thread writes here yet.
        for key, history in self._history.items():
            state = next((state for row, state in reversed(history) if row < offset), "")
            if state in _NEXT and history[-1][1] != "rolled_back":
                self._append(key[:3], [key[3]], "rolled_back")
        self.attempt += 1
        self.sync()

    def close(self) -> None:
        """Makes everything durable and closes the file."""
        # To close is to flush: what the disk did not take is refused again.
        with write_refusals(self._path):
            try:
                self.sync()
            finally:
                self._file.close()

    def _append(
        self,
        of: tuple[int, str, int],
        rollout_indices: list[int],
        to: LedgerState,
        **detail: object,
    ) -> None:
        # The rows after one that is lost would be no ledger.
        if self._lost is not None:
            raise self._lost
        attempt, policy, group_index = of
        row = {
            "n": self.offset,
            "attempt": attempt,
            "policy": policy,
            "group_index": group_index,
            "rollout_indices": rollout_indices,
            "to": to,
            **detail,
        }
        # An impossible row is refused before it reaches the file.
        self._apply(row)
        # The file is buffered: a row that a death takes came after the last sync, and a resume
        # rolls back whatever came after its checkpoint.
        try:
            self._file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self._lost = write_failure(f"{self._path} cannot be written", self._path, error)
            raise self._lost from error

    def _apply(self, row: Mapping[str, Any]) -> None:
        to = row["to"]
        rollout_indices = row["rollout_indices"]
        if to not in _STATES or not isinstance(rollout_indices, list):
            raise StoreError(
                f"{self._path}: row {self.offset} is no ledger row: {shown(row, 200)}"
            )
        for rollout_index in rollout_indices:
            key = (row["attempt"], row["policy"], row["group_index"], rollout_index)
            history = self._history.get(key, [])
            state = history[-1][1] if history else ""
            if to != "rolled_back" and to not in _NEXT.get(state, frozenset()):
                raise StoreError(
                    f"{self._path}: trajectory {key[2]}-{key[3]} of attempt {key[0]} cannot go "
                    f"from {state or 'nothing'} to {to} for policy {key[1]!r} (row {self.offset})"
                )
            if to == "trained":
                self._trained.add(key[1:])
            elif state == "trained":
                self._trained.discard(key[1:])
            history.append((self.offset, to))
            self._history[key] = history
        # The rows of a rollback bear the attempt that they take back, which is an earlier one.
        self.attempt = max(self.attempt, row["attempt"])
        self.offset += 1

    def _read(self) -> None:
        for row in ledger_rows(self._path):
            self._apply(row)
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        # The next row would otherwise be appended to the half of one that a death left.
        if whole < len(data):
            with self._path.open("r+b") as file:
                file.truncate(whole)


def ledger_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a ledger, without a partial last line; writes nothing.

    Raises:
        StoreError: the file cannot be read, or a line is no row.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines()):
        try:
            row: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError as error:
            raise StoreError(f"{path}: row {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or not row.keys() >= _KEYS:
            raise StoreError(f"{path}: row {number} is no ledger row: {shown(row, 200)}")
        yield row


def trained_batches(path: Path, stage: str, policy: str) -> dict[int, dict[int, list[int]]]:
    """What a stage has trained a policy by, step by step: of each group, in the order of the batch,
    the rollouts.

    What was rolled back is left out.

    Raises:
        StoreError: the file cannot be read.
    """
    own: set[tuple[int, int]] = set()
    taken: dict[tuple[int, int], int] = {}
    batches: dict[int, dict[int, list[int]]] = {}
    for row in ledger_rows(path):
        key = (row["attempt"], row["group_index"])
        if row["policy"] != policy:
            continue
        if row["to"] == "running" and row.get("stage") == stage:
            own.add(key)
        if key not in own:
            continue
        if row["to"] == "taken":  # in the order of the batch, before any of it is trained
            taken[key] = row["step"]
            batches.setdefault(row["step"], {}).setdefault(row["group_index"], [])
        elif row["to"] == "trained":
            batches[row["step"]][row["group_index"]] = list(row["rollout_indices"])
        elif row["to"] == "rolled_back" and key in taken:
            groups = batches[taken[key]]
            left = [
                one
                for one in groups.pop(row["group_index"], ())
                if one not in row["rollout_indices"]
            ]
            if left:
                groups[row["group_index"]] = left
    trained = {
        step: {group: rollouts for group, rollouts in groups.items() if rollouts}
        for step, groups in sorted(batches.items())
    }
    return {step: groups for step, groups in trained.items() if groups}
