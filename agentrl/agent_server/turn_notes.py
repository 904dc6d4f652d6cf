"""Turn notes: stores a served turn's calls, the results that a later request brings, and notes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.agent_server.history import HistoryEntry
from agentrl.rollouts.builder import SequenceState, TrajectoryBuilder
from agentrl.rollouts.turns import TurnResult
from agentrl.types import CallRecord, Message, ToolResult


def note_turn(builder: TrajectoryBuilder, turn: TurnResult, notes: Mapping[str, Any]) -> None:
    """Stores the calls of a turn, without results, and the notes that are not empty."""
    records = [CallRecord(call, None, None) for call in turn.action.tool_calls]
    records += [CallRecord(None, problem, None) for problem in turn.action.problems]
    index = _turn_index(turn.sequence)
    stored = builder.turns[index]
    builder.turns[index] = replace(
        stored,
        calls=tuple(sorted(records, key=_number)),
        info={**stored.info, **{name: value for name, value in notes.items() if value}},
    )


def note_results(
    builder: TrajectoryBuilder, entry: HistoryEntry, observed: Sequence[Message]
) -> None:
    """Stores the results that the agent brings, and the seconds since the turn's answer."""
    seconds = time.monotonic() - entry.answered_at
    results = {m["tool_call_id"]: str(m["content"]) for m in observed if m["role"] == "tool"}
    index = _turn_index(entry.sequence)
    stored = builder.turns[index]
    builder.turns[index] = replace(
        stored, calls=tuple(_with_result(record, results, seconds) for record in stored.calls)
    )


def _with_result(record: CallRecord, results: Mapping[str, str], seconds: float) -> CallRecord:
    call = record.call
    if call is None or record.result is not None or call.id not in results:
        return record
    return replace(record, result=ToolResult(call.id, call.name, results[call.id], None, seconds))


def _number(record: CallRecord) -> int:
    """The position among the calls and problems of its turn."""
    entry = record.call or record.problem
    return 0 if entry is None else int(entry.id.rpartition("_")[2])


def _turn_index(sequence: SequenceState) -> int:
    assert sequence.parent is not None, "the sequence ends with a turn"
    return sequence.parent
