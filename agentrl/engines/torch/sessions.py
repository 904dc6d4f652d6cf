"""Which session's KV lies where: in a row, parked beside the rows, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt
from torch import Tensor

from agentrl.engines.torch.kv_cache import KVCache
from agentrl.engines.torch.rows import RowTable


@dataclass(slots=True, eq=False)
class KVSession:
    """One episode's KV.

    Args:
        row: where it lies, if it has a row.
        parked, parked_ids: its KV and ids while it has none.
        pure: positions whose KV came from a prefill of the ids, not from decode steps
            (deterministic mode).
        busy: a request of it runs.
        ending: it was released while busy.
    """

    session_id: str
    row: int | None = None
    parked: Tensor | None = None
    parked_ids: npt.NDArray[np.int32] | None = None
    pure: int = 0
    busy: bool = False
    ending: bool = False


class SessionCache:
    """Idle sessions keep their row until a running request wants it, then are parked within
    ``parked_tokens``, then are evicted, each time the least recently used first."""

    def __init__(self, table: RowTable, kv: KVCache, parked_tokens: int) -> None:
        self._table = table
        self._kv = kv
        self._budget = parked_tokens
        self._parked_tokens = 0
        self._sessions: dict[str, KVSession] = {}
        self._idle: dict[str, KVSession] = {}  # with a row, in order of their last use
        self._parked: dict[str, KVSession] = {}  # likewise
        self._rows: list[KVSession | None] = [None] * len(table.busy)
        self._free = list(range(len(table.busy)))  # a heap: low rows first, so that few rows decode
        self._prompt_rows: dict[bytes, int] = {}
        self._row_prompts: dict[int, bytes] = {}

    @property
    def kv_tokens(self) -> int:
        """Positions held for all sessions."""
        return int(self._table.kv_len.sum()) + self._parked_tokens

    def open(self, session_id: str) -> KVSession:
        """The session of that id, new where unknown."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = KVSession(session_id)
        return session

    def holds(self, session_id: str) -> bool:
        """Whether the session has KV here."""
        return session_id in self._sessions

    def place(self, session: KVSession) -> int:
        """Gives a session a row, with its KV where that is parked. There must be a row that is not
        running.
        """
        if session.row is None:
            # it leaves its parking place first: to free a row, the session there may be parked in
            # that very place
            parked = session.parked
            parked_ids = session.parked_ids
            self._unpark(session)
            row = self._free_row()
            session.row = row
            self._rows[row] = session
            if parked is not None and parked_ids is not None:
                self._kv.give(row, parked)
                self._table.kv_len[row] = parked_ids.size
                self._table.ids[row, : parked_ids.size] = parked_ids
        self._idle.pop(session.session_id, None)
        session.busy = True
        return session.row

    def rest(self, session_id: str) -> None:
        """The session's request has left its row."""
        session = self._sessions[session_id]
        session.busy = False
        self._idle[session_id] = session
        if session.ending:
            self.release(session_id)

    def release(self, session_id: str) -> None:
        """Forgets a session, at once or when it rests."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        if session.busy:
            session.ending = True
            return
        del self._sessions[session_id]
        self._unpark(session)
        self._vacate(session)

    def forget_all(self) -> None:
        """Drops every session's KV; none may be busy."""
        for session_id in list(self._sessions):
            self.release(session_id)

    def remember_prompt(self, row: int, ids: npt.NDArray[np.int32]) -> None:
        """Siblings that come later find the prompt in this row."""
        key = ids.tobytes()
        self._forget_prompt(row)
        self._prompt_rows[key] = row
        self._row_prompts[row] = key

    def find_prompt(self, ids: npt.NDArray[np.int32]) -> tuple[int, int] | None:
        """A row that holds KV of exactly this prompt, and for how many of its positions it is
        pure.
        """
        row = self._prompt_rows.get(ids.tobytes())
        session = None if row is None else self._rows[row]
        if row is None or session is None:
            return None
        if common_prefix(ids, self._table.ids[row, : self._table.kv_len[row]]) < ids.size:
            return None
        return row, min(session.pure, int(ids.size))

    def swap(self, one: int, other: int) -> None:
        """Exchanges two rows with their KV and the prompts that they hold."""
        length_one = int(self._table.kv_len[one])
        length_other = int(self._table.kv_len[other])
        kept = self._kv.take(other, length_other)
        self._kv.copy(one, other, length_one)
        self._kv.give(one, kept)
        self._table.swap(one, other)
        prompts = self._row_prompts
        keys = prompts.pop(one, None), prompts.pop(other, None)
        for row, key in ((other, keys[0]), (one, keys[1])):
            if key is not None:
                prompts[row] = key
        for row, before in ((other, one), (one, other)):
            if (key := prompts.get(row)) is not None and self._prompt_rows.get(key) == before:
                self._prompt_rows[key] = row
        self._rows[one], self._rows[other] = self._rows[other], self._rows[one]
        if other in self._free or one in self._free:
            self._free = [{one: other, other: one}.get(row, row) for row in self._free]
            heapify(self._free)
        for row in (one, other):
            if (session := self._rows[row]) is not None:
                session.row = row
            self._kv.set_visible(row, int(self._table.kv_len[row]))

    def _free_row(self) -> int:
        if not self._free:
            self._park(next(iter(self._idle.values())))
        return heappop(self._free)

    def _park(self, session: KVSession) -> None:
        """Moves an idle session out of its row, or drops it where it is too long to be parked."""
        row = session.row
        assert row is not None
        length = int(self._table.kv_len[row])
        if length > self._budget:
            self.release(session.session_id)
            return
        while self._parked_tokens + length > self._budget:
            self.release(next(iter(self._parked)))
        session.parked = self._kv.take(row, length)
        session.parked_ids = self._table.ids[row, :length].copy()
        self._parked[session.session_id] = session
        self._parked_tokens += length
        self._vacate(session)

    def _unpark(self, session: KVSession) -> None:
        if (
            self._parked.pop(session.session_id, None) is not None
            and session.parked_ids is not None
        ):
            self._parked_tokens -= int(session.parked_ids.size)
        session.parked = session.parked_ids = None

    def _vacate(self, session: KVSession) -> None:
        self._idle.pop(session.session_id, None)
        if session.row is not None:
            self._table.kv_len[session.row] = 0
            self._forget_prompt(session.row)
            self._rows[session.row] = None
            heappush(self._free, session.row)
            session.row = None

    def _forget_prompt(self, row: int) -> None:
        key = self._row_prompts.pop(row, None)
        if key is not None and self._prompt_rows.get(key) == row:
            del self._prompt_rows[key]


def common_prefix(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> int:
    """How many leading ids two sequences share."""
    length = min(one.size, other.size)
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if differ.size else length
