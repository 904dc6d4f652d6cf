"""Task rows: a row of a data set becomes a task.

Its columns are ours, or verl's: ``data_source``, ``prompt``, ``ability``, ``reward_model``,
``extra_info``, with ``tools_kwargs`` and ``interaction_kwargs`` in it or beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agentrl.errors import DataError
from agentrl.llm.wire import stored_message
from agentrl.run.data.images import place_images
from agentrl.types import REWARD_STYLE, Message, Task
from agentrl.types.user_code.values import shown

_PROMPTS = ("messages", "prompt", "question")
_KNOWN = frozenset(
    {
        *_PROMPTS,
        "id",
        "images",
        "answer",
        "data_source",
        "info",
        "reward_model",
        "extra_info",
    }
)
_KWARGS = ("tools_kwargs", "interaction_kwargs")
_STYLES: tuple[Literal["rule", "model"], ...] = ("rule", "model")


def task_of(row: Any, index: int, where: str, folder: Path, source: str = "") -> Task:
    """A row as a task: a Task itself, our own columns, or verl's.

    Args:
        row: of a data set.
        index: its number, which is its id where it has none.
        where: its place, for errors.
        folder: where files of images start from.
        source: begins its id, where there are several sources.

    Raises:
        DataError: a column is missing, or of another type.
    """
    prefix = f"{source}/" if source else ""
    if isinstance(row, Task):
        return _checked(row, index, where, prefix)
    if not isinstance(row, Mapping):
        raise DataError(f"{where} must be a Task or a mapping, got {type(row).__name__}")
    reward_model = _mapping(row, "reward_model", where)
    info = {
        **{name: value for name, value in row.items() if name not in _KNOWN},
        **_mapping(row, "extra_info", where),
        **_mapping(row, "info", where),
    }
    for name in _KWARGS:
        if info.get(name) is not None:
            # Arrow gives every tool the arguments of all: what a row does not have is null
            info[name] = _without_nulls(_mapping(info, name, where))
    if reward_model.get("style") is not None:
        info[REWARD_STYLE] = _style(reward_model["style"], where)
    answer = row.get("answer")
    return Task(
        id=f"{prefix}{_id(row, index, where)}",
        messages=_stored(
            place_images(_messages(row, where), row.get("images"), folder, where), where
        ),
        answer=reward_model.get("ground_truth") if answer is None else answer,
        data_source=_text(row, "data_source", "default", where),
        info=info,
    )


def _checked(task: Task, index: int, where: str, prefix: str) -> Task:
    """A function's own task, whose fields may hold anything."""
    given = {name: getattr(task, name) for name in Task.__slots__}
    return replace(
        task,
        id=f"{prefix}{_id(given, index, where)}",
        # An environment may make its opening of ``info`` alone.
        messages=_stored(_messages(given, where) if task.messages else (), where),
        data_source=_text(given, "data_source", "default", where),
        info=_mapping(given, "info", where),
    )


def _stored(messages: Sequence[Mapping[str, Any]], where: str) -> tuple[Message, ...]:
    places = (f"{where}: messages[{number}]" for number in range(len(messages)))
    return tuple(map(stored_message, messages, places))


def _messages(row: Mapping[str, Any], where: str) -> Sequence[Mapping[str, Any]]:
    messages = next((row[name] for name in _PROMPTS if row.get(name) is not None), None)
    if messages is None:
        raise DataError(
            f"{where} has no 'messages', 'prompt' or 'question'; it has {sorted(map(str, row))}"
        )
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if (
        not isinstance(messages, Sequence)
        or not messages
        or not all(
            isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages
        )
    ):
        raise DataError(
            f"{where}: 'messages' must be text or a list of messages with a "
            f"role, got {shown(messages)}"
        )
    return messages


def _id(row: Mapping[str, Any], index: int, where: str) -> str:
    own = row.get("id")
    if own is None:
        return str(index)
    if isinstance(own, bool) or not isinstance(own, str | int) or own == "":
        raise DataError(f"{where}: 'id' must be a text or an integer, got {shown(own)}")
    return str(own)


def _text(row: Mapping[str, Any], name: str, default: str, where: str) -> str:
    own = row.get(name)
    if own is None:
        return default
    if not isinstance(own, str):
        raise DataError(f"{where}: {name!r} must be a text, got {shown(own)}")
    return own


def _mapping(row: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    own = row.get(name)
    if own is None:
        return {}
    if not isinstance(own, Mapping):
        raise DataError(f"{where}: {name!r} must be a mapping, got {shown(own)}")
    return own


def _style(style: Any, where: str) -> str:
    if style not in _STYLES:
        raise DataError(
            f"{where}: reward_model.style must be 'rule' or 'model', got {shown(style)}; correct "
            "it, or leave it out"
        )
    return str(style)


def check_style(task: Task, where: str, *, has_reward_model: bool) -> None:
    """Raises a DataError where a task asks for a reward model and there is none."""
    if task.info.get(REWARD_STYLE) == "model" and not has_reward_model:
        raise DataError(
            f"{where}: reward_model.style='model' needs a reward model, and there is none; set "
            "reward.model, or leave the row out"
        )


def same_id(task: Task, where: str, first: str) -> DataError:
    """The error of a task whose id an earlier one has; ``where`` and ``first`` are their places."""
    return DataError(
        f"{where} and {first} have the same id {task.id!r}, and ids must be unique; give one "
        "another, or leave the column 'id' out"
    )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(own) for key, own in value.items() if own is not None}
    return value
