"""Tool calls of a turn: bounds their number, and numbers them over the whole episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from agentrl.tools.parsers.reading import written_at
from agentrl.types import CallProblem, ParsedMessage, ToolCall, Turn


def bounded(parsed: ParsedMessage, most: int) -> ParsedMessage:
    """The first ``most`` calls and problems of a message, in the order written.

    One more problem counts the others, so that a turn gets at most ``most + 1`` answers.
    """
    written = in_order(parsed.tool_calls, parsed.problems)
    if len(written) <= most:
        return parsed
    left_out = sum(getattr(entry, "count", 1) for entry in written[most:])
    kept = {entry.id for entry in written[:most]}
    calls = tuple(call for call in parsed.tool_calls if call.id in kept)
    problems = [problem for problem in parsed.problems if problem.id in kept]
    detail = (
        f"{left_out} more calls of this turn were not run: a turn may make {most} "
        f"(rollout.max_calls_per_turn); make those that are still needed in the next turn"
    )
    problems.append(CallProblem(written[most].id, "too_many", detail, "", left_out))
    spans = {call_id: span for call_id, span in parsed.spans.items() if call_id in kept}
    return _with_calls(parsed, calls, tuple(problems), spans)


def renumbered(parsed: ParsedMessage, number: int) -> ParsedMessage:
    """The message with its model call's number in its calls' ids (``call_0`` becomes
    ``call_7_0``).
    """

    def renamed(call_id: str) -> str:
        return f"call_{number}_{call_id.rpartition('_')[2]}"

    calls = tuple(replace(call, id=renamed(call.id)) for call in parsed.tool_calls)
    problems = tuple(
        replace(problem, id=renamed(problem.id)) for problem in parsed.problems
    )
    spans = {renamed(call_id): span for call_id, span in parsed.spans.items()}
    return _with_calls(parsed, calls, problems, spans)


def num_bad_turns(turns: Sequence[Turn], agent: str) -> int:
    """The number of an agent's consecutive last turns that tried a call and made none that could be
    read.
    """
    bad = [
        bool(turn.calls) and not any(record.call for record in turn.calls)
        for turn in turns
        if turn.agent == agent
    ]
    return sum(1 for _ in takewhile(bool, reversed(bad)))


def in_order(
    calls: Iterable[ToolCall], problems: Iterable[CallProblem]
) -> list[ToolCall | CallProblem]:
    """Both in the order written."""
    return sorted((*calls, *problems), key=lambda entry: written_at(entry.id))


def _with_calls(
    parsed: ParsedMessage,
    calls: tuple[ToolCall, ...],
    problems: tuple[CallProblem, ...],
    spans: Mapping[str, tuple[int, int]],
) -> ParsedMessage:
    message = parsed.message.copy()
    message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [call.openai() for call in calls]
    return ParsedMessage(message, calls, problems, spans)
