"""Private copies: what is made anew, what is shared, and what is told of objects that cannot be
copied.
"""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.types import CallRecord, Segment, SegmentKind, Task, ToolCall, Turn
from agentrl.types.user_code.values import changed_parts, private_copy, private_task


class Board:
    """An object of a user's own."""

    def __init__(self) -> None:
        self.cells = [1]


def containers(value: Any) -> list[int]:
    """The ids of every dict and list within."""
    inner = value.values() if isinstance(value, dict) else value
    own = [id(value)] if isinstance(value, dict | list) else []
    deeper = isinstance(value, dict | list | tuple)
    return own + [found for one in inner for found in containers(one)] if deeper else own


def test_no_dict_or_list_of_a_copy_is_the_original_s() -> None:
    tree = {"a": [1, {"b": "x"}], "c": ({"d": None}, [2.5]), "e": {}}
    copied = private_copy(tree)
    assert copied == tree
    assert set(containers(copied)).isdisjoint(containers(tree))


def test_a_turn_has_its_own_messages_and_arguments_and_shares_its_tokens() -> None:
    segment = Segment(SegmentKind.PROMPT, np.asarray([1, 2]))
    record = CallRecord(ToolCall("call_0", "add", {"of": [1]}), None, None)
    turn = Turn(
        0, None, (segment,), (), "x", {"role": "assistant", "content": "x"}, calls=(record,)
    )
    copied = private_copy(turn)
    assert copied.context[0] is segment
    call = copied.calls[0].call
    assert call is not None
    call.arguments["of"].append(2)
    copied.message["content"] = "y"
    assert (record.call and record.call.arguments, turn.message["content"]) == (
        {"of": [1]},
        "x",
    )


def test_an_object_that_stands_twice_in_a_tree_is_copied_once() -> None:
    board = Board()
    info = private_task(Task("q", info={"one": board, "other": [board]})).info
    one, (other,) = info["one"], info["other"]
    assert one is other
    assert one is not board
    assert one.cells is not board.cells


def test_other_objects_are_shared_outside_of_tasks() -> None:
    lock = threading.Lock()
    kept = MappingProxyType({"lock": lock, "seen": []})
    copied = private_copy(kept)
    copied["seen"].append(1)
    assert copied["lock"] is lock
    assert kept["seen"] == []


def test_what_a_task_cannot_give_away_is_named() -> None:
    with pytest.raises(DataError) as caught:
        private_task(Task("q-1", info={"fine": 1, "held": {"lock": threading.Lock()}}))
    assert str(caught.value).startswith(
        "task 'q-1': info['held'] cannot be copied, and each episode gets a copy of its own: "
        "TypeError: cannot pickle '_thread.lock' object; keep JSON in a task"
    )


def test_a_number_that_json_cannot_write_is_compared_by_its_type() -> None:
    task = Task("q", answer=10**5000, info={"n": 1})
    assert changed_parts(task, Task("q", answer=10**5001, info={"n": 2})) == ["n"]
