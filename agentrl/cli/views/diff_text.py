"""Diff for people: what differs between two trajectories, turn by turn.

A line begins with ``a`` or ``b`` for a side, or nothing for both, so that sides are told apart
without colour too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.cli.terminal import counted
from agentrl.cli.views.trajectory_text import TokenText, print_text
from agentrl.types import Trajectory, concat_ids

_STYLES = {"a": "red", "b": "green", "=": ""}
_MARKS = {"a": "a |", "b": "b |", "=": "  |"}
# lines of equal text that are shown around what differs
_CONTEXT = 2
# tokens that are shown around the first that differs
_AROUND = 8


def print_diff(
    found: Mapping[str, Any], a: Trajectory, b: Trajectory, token_text: TokenText | None
) -> None:
    """Prints what ``turn_diff`` found.

    Args:
        found: by ``turn_diff``.
        a: the first trajectory.
        b: the second.
        token_text: decodes ids; without it they are shown as numbers.
    """
    _print(f"{found['a']}   task {a.task.id}   {counted(len(a.turns), 'turn')}", "a")
    _print(f"{found['b']}   task {b.task.id}   {counted(len(b.turns), 'turn')}", "b")
    if not found["same_task"]:
        _print("the tasks differ")
    for name, pair in found["result"].items():
        _print(f"{name}: a {_value(pair['a'])}, b {_value(pair['b'])}")
    parted = found["first_divergence"]
    if parted is None:
        _print("every token is equal")
    else:
        _print_divergence(parted, a, b, token_text)
    for turn in found["turns"]:
        _print_turn(turn)


def _value(value: Any) -> str:
    return (
        "none"
        if value is None
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _print_divergence(
    parted: Mapping[str, Any], a: Trajectory, b: Trajectory, token_text: TokenText | None
) -> None:
    _print(f"the first token that differs is {parted['token']}:")
    for side, trajectory in (("a", a), ("b", b)):
        if parted[f"id_{side}"] is None:
            _print("has ended", side)
            continue
        ids = concat_ids(segment for turn in trajectory.turns for segment in turn.segments)
        around = ids[max(0, parted["token"] - _AROUND) : parted["token"] + _AROUND]
        words = (
            " ".join(map(str, around)) if token_text is None else token_text(around)
        ).replace("\n", "⏎")
        where = f"turn {parted[f'turn_{side}']}, {parted[f'kind_{side}']}"
        _print(f"{where}, id {parted[f'id_{side}']}: … {words} …", side)


def _print_turn(turn: Mapping[str, Any]) -> None:
    if turn["a"] is None or turn["b"] is None:
        side = "b" if turn["a"] is None else "a"
        _print(f"turn {turn[side]} is in {side} alone", side)
        return
    numbers = f"turn {turn['a']}" + (f" and {turn['b']}" if turn["a"] != turn["b"] else "")
    if turn["equal"]:
        _print(f"{numbers}: equal")
        return
    words = ", ".join(turn["differences"]) or "the tokens alone"
    _print(f"{numbers}: {words}", style="bold")
    for pair in turn["differences"].values():
        if "changes" in pair:
            for side, text in _lines(pair["changes"]):
                _print(text, side)
        else:
            _print(str(pair["a"]), "a")
            _print(str(pair["b"]), "b")


def _lines(changes: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """The changes line by line: a line that differs stands once for each side, equal lines far from
    any difference are left out.
    """
    lines: list[tuple[str, str]] = []
    current = {"a": "", "b": ""}
    for side, text in [*changes, ["=", "\n"]]:
        *whole, last = text.split("\n")
        if side != "=":
            # its own newlines stay within the difference
            current[side] += text
            continue
        for part in whole:
            own = {name: line + part for name, line in current.items()}
            same = own["a"] == own["b"]
            lines += (
                [("=", own["a"])] if same else [(name, own[name]) for name in ("a", "b")]
            )
            current = {"a": "", "b": ""}
        current = {name: line + last for name, line in current.items()}
    near = [
        any(side != "=" for side, _ in lines[max(0, at - _CONTEXT) : at + _CONTEXT + 1])
        for at in range(len(lines))
    ]
    skipped = False
    for (side, text), wanted in zip(lines, near, strict=True):
        if wanted:
            yield side, text
        elif not skipped:
            yield "=", "…"
        skipped = not wanted


def _print(text: str, side: str = "", style: str = "") -> None:
    mark = _MARKS.get(side, "")
    print_text(text, style or _STYLES.get(side, ""), mark, mark, mark)
