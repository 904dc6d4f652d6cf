"""Shape: whether the final text has a form, and what length and tool calls cost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import regex

from agentrl.envs.rewards.answers import said_text
from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.guards.parsing import parse_json
from agentrl.guards.schema import SchemaFault, checked_schema
from agentrl.guards.secret_mask import beginning
from agentrl.types import SegmentKind
from agentrl.types.user_code.values import shown

# Without a way back: a block that nothing closes goes on to the end, and is read once.
_FENCE = re.compile(
    r"```(?:json)?[^\S\n]*+\n((?:[^\n]++|\n(?![^\S\n]*+```))*+)(\n[^\S\n]*+```)?"
)
_PATTERN_S = 1.0
_MAX_NODES = 100_000


def json_schema(view: EpisodeView, *, schema: Mapping[str, Any] | None = None) -> Score:
    """1.0 where the text, or the last fenced block in it, is JSON that keeps a schema, else 0.0.

    Args:
        view: the episode.
        schema: of draft 2020-12; by default ``task.info["schema"]``.

    Raises:
        RewardError: there is no schema, or it is none.
    """
    own = view.task.info.get("schema") if schema is None else schema
    if not isinstance(own, Mapping):
        raise RewardError(
            f"json_schema of task {view.task.id!r} needs a schema, in its args or as "
            f"task.info['schema'], got {shown(own, 80)}"
        )
    try:
        checked = checked_schema(json.dumps(own, sort_keys=True))
    except (SchemaFault, TypeError) as fault:
        raise RewardError(
            f"json_schema of task {view.task.id!r}: the schema {fault}"
        ) from fault
    text = said_text(view)
    fenced = [block[1] for block in _FENCE.finditer(text) if block[2]]
    try:
        value = parse_json(fenced[-1] if fenced else text, max_nodes=_MAX_NODES)
        broken = checked.broken(value)
    except ValueError as unreadable:
        return Score(0.0, {"json": beginning(str(unreadable), 200)})
    if not broken:
        return Score(1.0)
    return Score(
        0.0, {"path": broken[0].json_path, "broken": beginning(broken[0].message, 500)}
    )


def text_format(view: EpisodeView, *, pattern: str) -> Score:
    """1.0 where the whole final text fits a pattern, spaces around it apart, else 0.0.

    Args:
        view: the episode.
        pattern: a regular expression, in which a dot stands for a newline too. One that takes more
            than a second over a text gives 0.0.

    Raises:
        ConfigError: the pattern is none.
    """
    try:
        compiled = regex.compile(f"(?s:{pattern})")
        # Concurrent: the interpreter's lock is given up while it searches.
        found = compiled.fullmatch(
            view.final_text.strip(), timeout=_PATTERN_S, concurrent=True
        )
    except regex.error as error:
        raise ConfigError(f"text_format: pattern={pattern!r} is none: {error}") from error
    except TimeoutError:
        return Score(0.0, {"ended": f"more than {_PATTERN_S:g} s"})
    return Score(float(found is not None))


def length_cost(view: EpisodeView, *, free: int, full: int) -> float:
    """0.0 up to ``free`` sampled tokens, then linearly down to -1.0 at ``full`` and beyond.

    Args:
        view: the episode.
        free: tokens of the policy that cost nothing.
        full: tokens that cost 1.

    Raises:
        ConfigError: not 0 <= free < full.
    """
    if not 0 <= free < full:
        raise ConfigError(
            f"length_cost needs 0 <= free < full, got free={free} and full={full}"
        )
    tokens = sum(
        len(segment)
        for turn in view.turns
        for segment in turn.completion
        if segment.kind is SegmentKind.POLICY
    )
    # No -0.0.
    return 0.0 - min(max(tokens - free, 0) / (full - free), 1.0)


def tool_cost(view: EpisodeView, *, free: int = 0, failed_only: bool = False) -> float:
    """-1.0 for each call of a tool beyond the ``free`` first ones.

    Args:
        view: the episode.
        free: calls that cost nothing.
        failed_only: count only calls that were answered with an error, unreadable ones too.
    """
    calls = [record for turn in view.turns for record in turn.calls]
    if failed_only:
        calls = [
            one
            for one in calls
            if one.call is None or (one.result is not None and one.result.error)
        ]
    return 0.0 - max(len(calls) - free, 0)
