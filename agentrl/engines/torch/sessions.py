"""Which session's KV lies where: in a row, parked beside the rows, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.engines.torch.kv_cache import KVCache, Parked
from agentrl.engines.torch.rows import RowTable
from agentrl.types.arrays import common_prefix


@dataclass(slots=True, eq=False)
class KVSession:
    """One episode's KV.

    Args:
        row: where it lies, if it has a row.
        pure: positions whose KV came from a prefill of the ids, not from decode steps
            (deterministic mode).
        busy: a request of it runs.
        ending: it was released while busy.
        prompt: the bytes of the prompt's ids that its row was prefilled with.
    """

    session_id: str
    row: int | None = None
    pure: int = 0
    busy: bool = False
    ending: bool = False
    prompt: bytes = b""


class SessionCache:
    """Idle sessions keep their row until a running request wants it, then are parked within
    ``parked_tokens``, then are evicted, each time the least recently used first."""

    def __init__(self, table: RowTable, kv: KVCache, parked_tokens: int) -> None:
        self._table = table
        self._kv = kv
        self._budget = parked_tokens
        self._parked_tokens = 0
        self._sessions: dict[str, KVSession] = {}
        # with a row, in order of their last use
        self._idle: dict[str, KVSession] = {}
        # KV and ids of those without a row, likewise
        self._parked: dict[str, tuple[Parked, npt.NDArray[np.int32]]] = {}
        self._rows: list[KVSession | None] = [None] * len(table.kv_len)
        self._prompts: dict[bytes, KVSession] = {}

    @property
    def kv_tokens(self) -> int:
        """Positions held for all sessions."""
        return int(self._table.kv_len.sum()) + self._parked_tokens

    def open(self, session_id: str) -> KVSession:
        """The session of that id, new where unknown."""
        return self._sessions.setdefault(session_id, KVSession(session_id))

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
            parked = self._unpark(session.session_id)
            session.row = self._free_row()
            self._rows[session.row] = session
            if parked is not None:
                kv, ids = parked
                self._kv.give(session.row, kv)
                self._table.kv_len[session.row] = ids.size
                self._table.ids[session.row, : ids.size] = ids
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
        self._unpark(session_id)
        self._vacate(session)

    def forget_all(self) -> None:
        """Drops every session's KV; none may be busy."""
        for session_id in list(self._sessions):
            self.release(session_id)

    def remember_prompt(self, session: KVSession, ids: npt.NDArray[np.int32]) -> None:
        """Siblings that come after its prefill find the prompt in the session's row."""
        self._forget_prompt(session)
        session.prompt = ids.tobytes()
        self._prompts[session.prompt] = session

    def find_prompt(self, ids: npt.NDArray[np.int32]) -> tuple[int, int] | None:
        """A row that holds KV of exactly this prompt, and for how many of its positions it is
        pure.
        """
        session = self._prompts.get(ids.tobytes())
        if session is None or session.row is None:
            return None
        if common_prefix(ids, self._table.held(session.row)) < ids.size:
            return None
        return session.row, session.pure

    def swap(self, one: int, other: int) -> None:
        """Exchanges two rows with their KV."""
        length = int(self._table.kv_len[one])
        kept = self._kv.take(other, int(self._table.kv_len[other]))
        self._kv.copy(one, other, length)
        self._kv.give(one, kept)
        self._table.swap(one, other)
        self._rows[one], self._rows[other] = self._rows[other], self._rows[one]
        for row in (one, other):
            if (session := self._rows[row]) is not None:
                session.row = row
            self._kv.set_visible(row, int(self._table.kv_len[row]))

    def _free_row(self) -> int:
        """The lowest free row, so that few rows decode."""
        if None not in self._rows:
            self._park(next(iter(self._idle.values())))
        return self._rows.index(None)

    def _park(self, session: KVSession) -> None:
        """Moves an idle session out of its row, or drops it where it is too long to be parked."""
        assert session.row is not None
        ids = self._table.held(session.row).copy()
        if ids.size > self._budget:
            self.release(session.session_id)
            return
        while self._parked_tokens + ids.size > self._budget:
            self.release(next(iter(self._parked)))
        self._parked[session.session_id] = (self._kv.take(session.row, ids.size), ids)
        self._parked_tokens += ids.size
        self._vacate(session)

    def _unpark(self, session_id: str) -> tuple[Parked, npt.NDArray[np.int32]] | None:
        """Takes what is parked of a session out of its place."""
        parked = self._parked.pop(session_id, None)
        if parked is not None:
            self._parked_tokens -= parked[1].size
        return parked

    def _vacate(self, session: KVSession) -> None:
        self._idle.pop(session.session_id, None)
        if session.row is not None:
            self._table.kv_len[session.row] = 0
            self._forget_prompt(session)
            self._rows[session.row] = None
            session.row = None

    def _forget_prompt(self, session: KVSession) -> None:
        if self._prompts.get(session.prompt) is session:
            del self._prompts[session.prompt]
