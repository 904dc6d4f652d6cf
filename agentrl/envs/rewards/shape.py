"""Shape: whether the final text has a form, by a JSON Schema or a pattern."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from agentrl.envs.rewards.answers import said_text
from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError

_FENCE = regex.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", regex.DOTALL)
_PATTERN_S = 1.0


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
            f"task.info['schema'], got {own!r:.80}"
        )
    validator = _validator(json.dumps(own, sort_keys=True))
    text = said_text(view)
    fenced = _FENCE.findall(text)
    try:
        value = json.loads(fenced[-1] if fenced else text)
        error = next(iter(validator.iter_errors(value)), None)
    except (ValueError, RecursionError) as unreadable:
        return Score(0.0, {"json": str(unreadable)[:200] or "nested too deeply"})
    if error is None:
        return Score(1.0)
    return Score(0.0, {"path": error.json_path, "broken": error.message[:500]})


@functools.lru_cache(maxsize=64)
def _validator(schema: str) -> Draft202012Validator:
    own = json.loads(schema)
    try:
        Draft202012Validator.check_schema(own)
    except SchemaError as error:
        raise RewardError(f"json_schema: the schema is none: {error.message[:500]}") from error
    return Draft202012Validator(own)


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
        compiled = regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ConfigError(f"text_format: pattern={pattern!r} is none: {error}") from error
    try:
        fits = compiled.fullmatch(view.final_text.strip(), timeout=_PATTERN_S)
    except TimeoutError:
        return Score(0.0, {"ended": f"more than {_PATTERN_S:g} s"})
    return Score(float(fits is not None))
