"""Side by side: rollouts of a task, a task over training, and two trajectories by their turns.

What is not comparable is no mean: each stage counts its versions from 0, and rollouts, the greedy
baseline and each evaluation sample in ways of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import Match, SequenceMatcher
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np

from agentrl.store import Annotation, TokenArrays
from agentrl.types import (
    CallRecord,
    SegmentKind,
    Trajectory,
    Turn,
    concat_ids,
    content_text,
)
from agentrl.types.arrays import common_prefix

_T = TypeVar("_T")
Row = Mapping[str, Any]


def group_view(
    rows: Sequence[Row],
    tokens: Mapping[str, TokenArrays],
    annotations: Iterable[Annotation] = (),
    agents: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """What sets the rollouts of a group apart, as the viewer's API sends it.

    Args:
        rows: its trajectories (fields of docs/query.md).
        tokens: by id, of all or some of them.
        annotations: of its trajectories; of two of one id the later one with advantages counts.
        agents: by id, the agent of each turn.

    Returns:
        ``rows``: the summaries, by rollout index and attempt.
        ``reward_mean``, ``reward_std``: of those that are compared and have a reward; None without
        any.
        ``zero_std``: ``lacks_spread``.
        ``advantages``: by id, the mean over trained tokens of each agent that has any; agents of
        one episode may have opposite ones.
        ``shared_tokens``: the tokens that all sequences of ``tokens`` begin with.
        ``drop``: ``drop_of``.
    """
    ordered = sorted(rows, key=lambda row: (row["rollout"], row["attempt"]))
    own = compared(ordered)
    rewards = [float(row["reward"]) for row in own if row["reward"] is not None]
    learned = {one.trajectory_id: one for one in annotations if "advantages" in one.arrays}
    ids = [arrays.token_ids for arrays in tokens.values()]
    return {
        "rows": ordered,
        "reward_mean": float(np.mean(rewards)) if rewards else None,
        "reward_std": float(np.std(rewards)) if rewards else None,
        "zero_std": lacks_spread(ordered),
        "advantages": {
            name: _mean_advantages(one, tokens[name], (agents or {}).get(name, ()))
            for name, one in learned.items()
        },
        "shared_tokens": min((common_prefix(ids[0], other) for other in ids), default=0),
        "drop": drop_of(ordered),
    }


def compared(rows: Iterable[Row]) -> list[Row]:
    """The rollouts of a group without the greedy baseline of ReMax: it is what they are compared
    with, and never trained.
    """
    return [row for row in rows if row["purpose"] != "baseline"]


def lacks_spread(rows: Iterable[Row]) -> bool:
    """Whether all rewards of a group of training are there and equal, so that a comparison teaches
    nothing.
    """
    own = [row for row in compared(rows) if not row["label"]]
    rewards = [row["reward"] for row in own if row["reward"] is not None]
    needed = max((row["group_size"] for row in own), default=0)
    return len(rewards) >= max(2, needed) and len(set(rewards)) == 1


def drop_of(rows: Iterable[Row]) -> str:
    """Why a group was not trained; empty where it was, or is to be."""
    return next((row["drop"] for row in compared(rows) if row["drop"]), "")


def _mean_advantages(
    annotation: Annotation, tokens: TokenArrays, agents: Sequence[str]
) -> dict[str, float]:
    """By agent; "" is the agent of a turn that names none."""
    advantages = np.asarray(annotation.arrays["advantages"], dtype=np.float64)
    weight = annotation.arrays.get("loss_weight")
    trained = (
        np.ones(advantages.size, dtype=bool) if weight is None else np.asarray(weight) != 0
    )
    turns = tokens.turn_index[tokens.kinds == SegmentKind.POLICY]
    if not turns.size == advantages.size == trained.size:
        # of another record of this id
        return {}
    own: dict[str, list[float]] = {}
    for turn, advantage in zip(
        turns[trained].tolist(), advantages[trained].tolist(), strict=True
    ):
        own.setdefault(agents[turn] if turn < len(agents) else "", []).append(advantage)
    return {agent: float(np.mean(values)) for agent, values in own.items()}


SERIES = ("reward", "policy_tokens", "turns", "calls", "tool_errors")
"""The fields whose means are shown."""


def task_view(rows: Iterable[Row]) -> dict[str, Any]:
    """One task's trajectories and what became of them, as the viewer's API sends it.

    Args:
        rows: its trajectories (fields of docs/query.md), in any order; one without a policy
            version counts in no course.

    Returns:
        ``rows``: the summaries with ``way``, by stage as they began, policy version, step and id.
        ``courses``: how each stage played the task, as they began: ``stage``; ``version``, the
        policy versions that played it, ascending; ``ways``: by the way of playing (``way_of``),
        ``count`` (trajectories) and the mean of each of ``SERIES``, an entry for each version,
        None where no trajectory has a value; ``first`` and ``last``: of the oldest and the newest
        version, the trajectory with the median reward, of the way that has most: the pair that a
        reader compares first; None without any.
    """
    told = [{**row, "way": way_of(row)} for row in rows]
    by_stage: dict[str, list[Row]] = {}
    for row in sorted(told, key=lambda row: row.get("recorded_at") or 0.0):
        by_stage.setdefault(row.get("stage") or "", []).append(row)
    for own in by_stage.values():
        own.sort(key=lambda row: (_version(row), row["step"], row["id"]))
    return {
        "rows": [row for own in by_stage.values() for row in own],
        "courses": [_course(stage, own) for stage, own in by_stage.items()],
    }


def way_of(row: Row) -> str:
    """How a trajectory was sampled: ``train``, ``baseline``, or an evaluation's set and kind, such
    as ``code greedy`` of the label ``code/before/greedy``.
    """
    if row.get("purpose") != "eval":
        return str(row.get("purpose") or "train")
    name, *parts = str(row.get("label") or "eval").split("/")
    return " ".join([name, *parts[-1:]])


def _course(stage: str, rows: list[Row]) -> dict[str, Any]:
    known = [row for row in rows if _version(row) >= 0]
    versions = sorted({_version(row) for row in known})
    by_way: dict[str, dict[int, list[Row]]] = {}
    for row in known:
        by_way.setdefault(row["way"], {}).setdefault(_version(row), []).append(row)
    ways: dict[str, dict[str, list[float | None]]] = {}
    for way, own in by_way.items():
        played = [own.get(version, []) for version in versions]
        ways[way] = {name: [_mean(one, name) for one in played] for name in SERIES}
        ways[way]["count"] = [float(len(one)) for one in played]
    largest = max(by_way.values(), key=lambda own: sum(map(len, own.values())), default={})
    main = list(largest.values())
    first, last = (_median(main[0]), _median(main[-1])) if main else (None, None)
    return {"stage": stage, "version": versions, "ways": ways, "first": first, "last": last}


def _version(row: Row) -> int:
    version = row.get("newest_version")
    return -1 if version is None else int(version)


def _mean(rows: Iterable[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(np.mean(values)) if values else None


def _median(rows: list[Row]) -> str | None:
    rewarded = sorted(
        (row for row in rows if row["reward"] is not None),
        key=lambda row: (row["reward"], row["id"]),
    )
    return str(rewarded[len(rewarded) // 2]["id"]) if rewarded else None


_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_WORDS = 20_000
"""Longer texts are compared by line: words would take seconds."""


def turn_diff(a: Trajectory, b: Trajectory) -> dict[str, Any]:
    """What differs between two trajectories, as JSON.

    Turns that are equal are aligned first, those between them in their order, as are those that
    repeat too often to find which belongs to which; a turn without a partner stands alone.

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
    numbers: dict[tuple[Any, ...], int] = {}
    turns_a, turns_b = (
        [numbers.setdefault(_key(turn), len(numbers)) for turn in one.turns]
        for one in (a, b)
    )
    for tag, i1, i2, j1, j2 in _opcodes(turns_a, turns_b, autojunk=False):
        if tag == "equal":
            yield from zip(range(i1, i2), range(j1, j2), strict=True)
            continue
        for offset in range(max(i2 - i1, j2 - j1)):
            i, j = i1 + offset, j1 + offset
            yield (i if i < i2 else None), (j if j < j2 else None)


_STEPS = 100
"""Of an alignment, for each of its elements; 9,000 words of prose take 60. Those that repeat could
take the cube of their number, and who repeats them is the policy.
"""


class _Matcher(SequenceMatcher[_T]):
    """Finds no more matches once it has taken its steps."""

    # Of SequenceMatcher, whose type stubs leave them out.
    a: Sequence[_T]
    b2j: dict[_T, list[int]]

    def __init__(self, a: Sequence[_T], b: Sequence[_T], *, autojunk: bool) -> None:
        self._steps = _STEPS * (len(a) + len(b))
        super().__init__(None, a, b, autojunk)

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Match:
        own = self.a[alo:ahi]
        self._steps -= len(own)
        if self._steps >= 0:
            self._steps -= sum(len(self.b2j.get(one, ())) for one in own)
        if self._steps < 0:
            return Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def _opcodes(
    a: Sequence[_T], b: Sequence[_T], *, autojunk: bool
) -> Iterator[tuple[str, int, int, int, int]]:
    """What of two sequences is equal and what is not, as ``SequenceMatcher.get_opcodes`` has it."""
    first = _equal(zip(a, b, strict=False))
    last = _equal(zip(reversed(a[first:]), reversed(b[first:]), strict=False))
    ends = (len(a) - last, len(b) - last)
    if first:
        yield "equal", 0, first, 0, first
    between = _Matcher(a[first : ends[0]], b[first : ends[1]], autojunk=autojunk)
    for tag, *place in between.get_opcodes():
        i1, i2, j1, j2 = (first + own for own in place)
        yield tag, i1, i2, j1, j2
    if last:
        yield "equal", ends[0], len(a), ends[1], len(b)


def _equal(pairs: Iterable[tuple[object, object]]) -> int:
    """How many of the first pairs are of equals."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _key(turn: Turn) -> tuple[Any, ...]:
    return (*_parts(turn).values(), tuple(concat_ids(turn.segments).tolist()))


def _parts(turn: Turn) -> dict[str, Any]:
    """The parts of a turn that are compared, as text or JSON."""
    return {
        "agent": turn.agent,
        "observed": "\n".join(
            f"{message['role']}: {content_text(message['content'])}"
            for message in turn.observed
        ),
        "text": turn.text,
        "calls": "\n".join(_call(call) for call in turn.calls),
        "rewards": ", ".join(f"{name} {value!r}" for name, value in turn.rewards.items()),
        "finish_reason": turn.finish_reason,
    }


def _call(record: CallRecord) -> str:
    """A call without what no two runs share: its latency."""
    call = (
        f"{record.call.name}({dict(record.call.arguments)!r})"
        if record.call
        else "(unreadable)"
    )
    problem = (
        f" problem {record.problem.kind}: {record.problem.detail}" if record.problem else ""
    )
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
    for tag, i1, i2, j1, j2 in _opcodes(words_a, words_b, autojunk=True):
        if tag == "equal":
            changes.append(["=", "".join(words_a[i1:i2])])
            continue
        changes += [["a", "".join(words_a[i1:i2])]] if i2 > i1 else []
        changes += [["b", "".join(words_b[j1:j2])]] if j2 > j1 else []
    return changes


def _first_divergence(a: Trajectory, b: Trajectory) -> dict[str, Any] | None:
    ids_a, ids_b = (
        concat_ids(s for turn in one.turns for s in turn.segments) for one in (a, b)
    )
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
