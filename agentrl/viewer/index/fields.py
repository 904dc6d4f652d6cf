"""Index fields: what is known of a trajectory, each under one name.

This is the one declaration: query box, order, facets, lists, ``agentrl ls`` and the columns of SQL
come from it. Numbers that a run names itself become fields once a file has one (``FOUND``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from agentrl.errors import ConfigError, did_you_mean
from agentrl.store.trajectories.columns import COLUMNS as STORED
from agentrl.types import ProblemKind, Purpose, StatusKind, ToolErrorKind
from agentrl.types.user_code.values import shown

SEPARATOR = "\x1f"
"""Stands around each entry of a list, as in ``\\x1fpython\\x1fsearch\\x1f``."""

Kind = Literal["integer", "real", "text", "list"]

_KINDS: Mapping[pa.DataType, Kind] = {
    pa.int32(): "integer",
    pa.int64(): "integer",
    pa.float64(): "real",
    pa.string(): "text",
    pa.list_(pa.string()): "list",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field.

    Args:
        name: in queries, orders, facets, lists and SQL.
        kind: of its values.
        help: what it is, in one sentence.
        unit: of a number; empty for a plain one.
        stored: the column of a shard that it is; empty where it comes from elsewhere.
        found: the name that the number would have, were it not declared (``FOUND``).
        choices: all values that it may have; empty where it is open.
        counted: whether facets have it by default.
        listed: whether the list of trajectories has it by default.
        indexed: whether an index sorts it: a run of 100,000 is then sorted in 3 ms and not 30.
        operand: its SQL in a condition, where that is not its name.
    """

    name: str
    kind: Kind
    help: str = ""
    unit: str = ""
    stored: str = ""
    found: str = ""
    choices: tuple[str, ...] = ()
    counted: bool = False
    listed: bool = False
    indexed: bool = False
    operand: str = ""

    @property
    def is_number(self) -> bool:
        """Whether it is compared as a number."""
        return self.kind in ("integer", "real")

    @property
    def nullable(self) -> bool:
        """Whether a trajectory may have no value."""
        return STORED[self.stored].nullable if self.stored else self.is_number

    @property
    def column(self) -> str:
        """Its name in SQL."""
        return in_sql(self.name)

    @property
    def sql(self) -> str:
        """Its expression in a condition.

        A number's ``+`` keeps SQLite from an index, whose rows lie scattered: to scan all is four
        times as fast where half of them fit. Those of a step or a group lie together.
        """
        plain = not self.is_number or self.name in ("step", "group")
        return self.operand or f"{'' if plain else '+'}{self.column}"


def in_sql(name: str) -> str:
    """A name of SQL, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def _stored(name: str, help: str, stored: str = "", **more: Any) -> Field:  # noqa: A002
    stored = stored or name
    kind = more.pop("kind", _KINDS[STORED[stored].type])
    return Field(name, kind, help, stored=stored, **more)


_SEEN: Mapping[str, Any] = {"counted": True, "listed": True, "indexed": True}
_DECLARED = (
    _stored("id", "The trajectory.", listed=True),
    _stored("step", "The step in which it finished.", **_SEEN),
    Field("trained_step", "integer", "The step that trained it, by the ledger."),
    _stored("reward", "The weighted sum; none where it failed.", **_SEEN),
    _stored("status", "How it ended.", choices=get_args(StatusKind), **_SEEN),
    _stored(
        "reason",
        "The limit that truncated it, or the boundary that failed.",
        "status_reason",
        counted=True,
    ),
    _stored("finish", "How its last completion ended.", "finish_reason", counted=True),
    _stored("task", "The task.", "task_id", listed=True, indexed=True),
    _stored("group", "Its group.", "group_index", listed=True),
    _stored("rollout", "Its place in the group.", "rollout_index"),
    _stored("attempt", "Grows with each retry.", "attempt"),
    _stored("group_size", "Rollouts of its group that had to finish."),
    _stored("source", "The data set.", "data_source", **_SEEN),
    _stored("stage", "The stage of the run.", **_SEEN),
    _stored("label", "The evaluation that it counts in; none in training.", counted=True),
    _stored("purpose", "What it was played for.", choices=get_args(Purpose), counted=True),
    _stored("env", "The environment.", counted=True),
    _stored("turns", "Model calls.", "num_turns", **_SEEN),
    _stored("tokens", "All tokens that its turns add.", "num_tokens", **_SEEN),
    _stored(
        "policy_tokens",
        "Tokens that the policy sampled.",
        "num_policy_tokens",
        counted=True,
    ),
    _stored("calls", "Tool calls.", "num_calls", counted=True, indexed=True),
    _stored("tool_errors", "Calls that failed.", "num_tool_errors", **_SEEN),
    _stored(
        "error",
        "Kinds of the calls that failed.",
        "errors",
        kind="list",
        choices=(*get_args(ToolErrorKind), *get_args(ProblemKind)),
        counted=True,
    ),
    _stored(
        "version",
        "Oldest policy version among its tokens.",
        "policy_version_min",
        counted=True,
    ),
    _stored(
        "newest_version", "Newest policy version among its tokens.", "policy_version_max"
    ),
    Field(
        "staleness",
        "integer",
        "Published versions that its oldest token lies behind the weights that it trained.",
        "versions",
        found="annotation.staleness",
        counted=True,
    ),
    Field(
        "credit",
        "real",
        "The algorithm's credit, before it is brought to tokens.",
        found="annotation.credit",
    ),
    Field("advantage", "real", "Mean of its trained tokens.", found="annotation.advantage"),
    Field(
        "mismatch",
        "real",
        "Largest distance of the trainer's and the engine's logprob of a trained token.",
        "nats",
        found="annotation.mismatch",
    ),
    Field(
        "clip_frac",
        "real",
        "Share of its trained tokens whose gradient a bound took.",
        found="annotation.clip_frac",
    ),
    Field(
        "retok_frac",
        "real",
        "Share of its sampled tokens that are not those of their text.",
        found="info.retok_frac",
    ),
    Field(
        "drop",
        "text",
        "Why training left it out, by the ledger.",
        counted=True,
        listed=True,
        indexed=True,
    ),
    _stored("tool", "Tools that it called.", "tools", counted=True, listed=True),
    _stored("agent", "Agents that had a turn.", "agents", counted=True),
    Field("seconds", "real", "From its start to its end.", "s"),
    _stored("started_at", "When its environment was made.", unit="epoch s"),
    _stored("ended_at", "When it was scored.", unit="epoch s", listed=True, indexed=True),
    _stored("recorded_at", "When it was written.", unit="epoch s", indexed=True),
    Field("note", "list", "Labels of people's notes.", counted=True, listed=True),
)

FIELDS: Mapping[str, Field] = {field.name: field for field in _DECLARED}
"""By name; besides, those of ``FOUND``."""

TEXTS: Mapping[str, str] = {"prompt": "prompt", "answer": "task", "final": "final_text"}
"""What a list can show besides, by name: the column of a shard that it is read from. They are
searched by ``text:``, and sort nothing."""

FOUND: Mapping[str, str] = {
    "reward": "Part of the reward.",
    "error": "Calls that failed so.",
    "info": "Number of the trajectory's info; a truth value is 0 or 1.",
    "annotation": "Number of its annotations: of several the newest.",
}
"""What runs name themselves, by what stands before the dot, as in ``info.score``."""

LEARNED = tuple(field.name for field in _DECLARED if field.found.startswith("annotation."))
SORTED_BY_DEFAULT = "label,-step"
"""Training before evaluations, the newest step first."""

_OWN = re.compile(r"[^\s:<>=!()\",]{1,100}")
_FOUND = re.compile(rf"(?:{'|'.join(FOUND)})\.{_OWN.pattern}")
_DECLARED_NAMES = {field.found: field.name for field in _DECLARED if field.found}


def found_name(kind: str, name: str) -> str:
    """The field that a number of a run is; empty where its name cannot be a field's.

    Args:
        kind: one of ``FOUND``.
        name: as the run has it.
    """
    whole = f"{kind}.{name}"
    fits = _FOUND.fullmatch(whole) and name.isprintable()
    return _DECLARED_NAMES.get(whole, whole) if fits else ""


def found_field(name: str) -> Field | None:
    """The field of a number that runs name themselves; None where the name is none of these."""
    if not _FOUND.fullmatch(name) or name in _DECLARED_NAMES:
        return None
    return Field(name, "real", FOUND[name.partition(".")[0]])


def meant(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """What a name that is no field's may have meant, as the end of a message.

    Args:
        name: as it was given.
        known: the names that there are.
        otherwise: what else is said where no name is near.
    """
    older = {field.stored: field.name for field in _DECLARED if field.stored}
    older |= {"labels": "note", "drop_reason": "drop", **_DECLARED_NAMES}
    if name in older:
        return f"; did you mean {older[name]!r}?"
    names = list(known)
    return did_you_mean(name, names, f"fields are {', '.join(names)}{otherwise}")


def named_field(name: str, fields: Mapping[str, Field], what: str) -> Field:
    """The field of a name.

    Args:
        name: as it was given.
        fields: those that there are.
        what: who names it, for the error.

    Raises:
        ConfigError: there is no such field.
    """
    if name in fields:
        return fields[name]
    why = "; a text sorts and counts nothing" if name in TEXTS else meant(name, fields)
    raise ConfigError(f"{what} must name fields, got {shown(name, 100)}{why}")


def joined(values: object) -> str:
    """A list as its column holds it."""
    names = (
        [str(value) for value in values]
        if isinstance(values, list | tuple | Mapping)
        else []
    )
    return SEPARATOR + SEPARATOR.join(names) + SEPARATOR if names else ""


def split(text: str | None) -> list[str]:
    """The list of such a column."""
    return text.strip(SEPARATOR).split(SEPARATOR) if text else []
