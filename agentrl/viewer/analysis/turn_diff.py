"""Turn diff: aligns two trajectories by their turns and names where they part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from agentrl.types import CallRecord, SegmentKind, Trajectory, Turn, concat_ids, content_text
from agentrl.types.arrays import common_prefix

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_WORDS = 20_000
"""Longer texts are compared by line: words would take seconds."""


def turn_diff(a: Trajectory, b: Trajectory) -> dict[str, Any]:
    """What differs between two trajectories, as JSON.

    Turns that are equal are aligned first, those between them in their order; a turn without a
    partner stands alone.

    Returns:
        ``first_divergence``: the first token at which the trajectories part, as ``token`` (its
        place in the trajectory), ``turn_a``, ``turn_b``, ``id_a``, ``id_b``, ``kind_a``,
        ``kind_b``; a side that has ended is None; None where all tokens are equal.
        ``turns``: for each aligned pair ``a`` and ``b`` (the turns' indices, or None), ``equal``,
        and ``differences`` by part (``observed``, ``text``, ``calls``, ``rewards``,
        ``finish_reason``, ``agent``): ``{"a", "b"}`` as they stand, for texts also ``changes``, a
        list of ``[side, text]`` where the side is ``"="``, ``"a"`` or ``"b"``.
        ``result``: what differs of status, reward and reward parts, as ``{"a", "b"}`` by name.
    """
    return {
        "a": a.id,
        "b": b.id,
        "same_task": a.task.id == b.task.id,
        "result": _differing(_result(a), _result(b)),
        "first_divergence": _first_divergence(a, b),
        "turns": [_pair(a, b, i, j) for i, j in _aligned(a, b)],
    }


def _result(trajectory: Trajectory) -> dict[str, Any]:
    parts = {f"rewards.{name}": value for name, value in trajectory.rewards.items()}
    return {"status": str(trajectory.status), "reward": trajectory.reward, **parts}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {"a": a.get(name), "b": b.get(name)}
        for name in dict.fromkeys([*a, *b])
        # a NaN differs from itself
        if a.get(name) != b.get(name) and repr(a.get(name)) != repr(b.get(name))
    }


def _aligned(a: Trajectory, b: Trajectory) -> Iterator[tuple[int | None, int | None]]:
    keys_a, keys_b = ([_key(turn) for turn in one.turns] for one in (a, b))
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(range(i1, i2), range(j1, j2), strict=True)
            continue
        for offset in range(max(i2 - i1, j2 - j1)):
            i, j = i1 + offset, j1 + offset
            yield (i if i < i2 else None), (j if j < j2 else None)


def _key(turn: Turn) -> tuple[Any, ...]:
    return (*_parts(turn).values(), tuple(concat_ids(turn.segments).tolist()))


def _parts(turn: Turn) -> dict[str, Any]:
    """The parts of a turn that are compared, as text or JSON."""
    return {
        "agent": turn.agent,
        "observed": "\n".join(
            f"{message['role']}: {content_text(message['content'])}" for message in turn.observed
        ),
        "text": turn.text,
        "calls": "\n".join(_call(call) for call in turn.calls),
        "rewards": ", ".join(f"{name} {value!r}" for name, value in turn.rewards.items()),
        "finish_reason": turn.finish_reason,
    }


def _call(record: CallRecord) -> str:
    """A call without what no two runs share: its latency."""
    call = f"{record.call.name}({dict(record.call.arguments)!r})" if record.call else "(unreadable)"
    problem = f" problem {record.problem.kind}: {record.problem.detail}" if record.problem else ""
    result = record.result
    if result is None:
        return f"{call}{problem} -> none"
    error = f" error {result.error}" if result.error else ""
    return f"{call}{problem} ->{error} {result.content}"


def _pair(a: Trajectory, b: Trajectory, i: int | None, j: int | None) -> dict[str, Any]:
    own_a = a.turns[i] if i is not None else None
    own_b = b.turns[j] if j is not None else None
    pair: dict[str, Any] = {"a": i, "b": j, "equal": False, "differences": {}}
    if own_a is None or own_b is None:
        return pair
    differences = _differing(_parts(own_a), _parts(own_b))
    for name in ("observed", "text", "calls"):
        if name in differences:
            differences[name]["changes"] = _changes(*differences[name].values())
    tokens = np.array_equal(concat_ids(own_a.segments), concat_ids(own_b.segments))
    return pair | {"equal": tokens and not differences, "differences": differences}


def _changes(a: str, b: str) -> list[list[str]]:
    """``a`` and ``b`` word by word: ``[side, text]``."""
    words_a, words_b = (_WORD.findall(text) for text in (a, b))
    if len(words_a) + len(words_b) > _MAX_WORDS:
        words_a, words_b = a.splitlines(keepends=True), b.splitlines(keepends=True)
    changes = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, words_a, words_b).get_opcodes():
        if tag == "equal":
            changes.append(["=", "".join(words_a[i1:i2])])
            continue
        changes += [["a", "".join(words_a[i1:i2])]] if i2 > i1 else []
        changes += [["b", "".join(words_b[j1:j2])]] if j2 > j1 else []
    return changes


def _first_divergence(a: Trajectory, b: Trajectory) -> dict[str, Any] | None:
    ids_a, ids_b = (concat_ids(s for turn in one.turns for s in turn.segments) for one in (a, b))
    token = common_prefix(ids_a, ids_b)
    if token == ids_a.size == ids_b.size:
        return None
    sides = {"a": _at(a, token), "b": _at(b, token)}
    parted = {f"{name}_{side}": own[name] for side, own in sides.items() for name in own}
    return {"token": token, **parted}


def _at(trajectory: Trajectory, token: int) -> dict[str, Any]:
    """Turn, id and kind of a token of a trajectory; None of each behind its end."""
    start = 0
    for turn in trajectory.turns:
        for segment in turn.segments:
            if token < start + len(segment):
                kind = SegmentKind(segment.kind).name.lower()
                own_id = int(segment.token_ids[token - start])
                return {"turn": turn.index, "id": own_id, "kind": kind}
            start += len(segment)
    return {"turn": None, "id": None, "kind": None}
