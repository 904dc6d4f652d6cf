"""What is kept with a turn beside its tokens: its calls, the results that come with a later request, and notes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.agent_server.history import Place
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.turns import TurnResult
from agentrl.types import CallRecord, Message, ToolResult

__all__ = ["note_answers", "note_turn"]


def note_turn(builder: TrajectoryBuilder, made: TurnResult, notes: Mapping[str, Any]) -> None:
    """The turn's calls, whose results come with the request that brings them, and what is to be known of it."""
    records = [CallRecord(call, None, None) for call in made.action.tool_calls]
    records += [CallRecord(None, problem, None) for problem in made.action.problems]
    index = _index(made.head.parent)
    turn = builder.turns[index]
    calls = tuple(sorted(records, key=_number))
    builder.turns[index] = replace(
        turn, calls=calls, info={**turn.info, **{k: v for k, v in notes.items() if v}}
    )


def note_answers(builder: TrajectoryBuilder, place: Place, observed: Sequence[Message]) -> None:
    """Results that the agent brings, with the time that it took to bring them."""
    seconds = time.monotonic() - place.answered_at
    answers = {m["tool_call_id"]: str(m["content"]) for m in observed if m["role"] == "tool"}
    index = _index(place.head.parent)
    turn = builder.turns[index]
    builder.turns[index] = replace(
        turn, calls=tuple(_answered(record, answers, seconds) for record in turn.calls)
    )


def _answered(record: CallRecord, answers: Mapping[str, str], seconds: float) -> CallRecord:
    call = record.call
    if call is None or record.result is not None or call.id not in answers:
        return record
    return replace(record, result=ToolResult(call.id, call.name, answers[call.id], None, seconds))


def _number(record: CallRecord) -> int:
    """Where it stands among the calls and problems of its turn."""
    named = record.call or record.problem
    return 0 if named is None else int(named.id.rpartition("_")[2])


def _index(parent: int | None) -> int:
    assert parent is not None, "a place is behind a turn"
    return parent
