"""The one place where an algorithm's name becomes its record. Looking settings up imports no torch."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.settings import GRPOSettings, RewardModelSettings, SFTSettings
from agentrl.errors import ConfigError
from agentrl.types import load_object

__all__ = ["ALGORITHMS", "Entry", "Settings", "check_settings", "make_algorithm"]

Settings: TypeAlias = GRPOSettings | RewardModelSettings | SFTSettings


@dataclass(frozen=True, slots=True)
class Entry:
    """A built-in algorithm: its settings, and where its ``(settings) -> AlgorithmSpec`` is, loaded when made."""

    settings: type[Settings]
    make: str


ALGORITHMS: Mapping[str, Entry] = {
    "grpo": Entry(GRPOSettings, "agentrl.algorithms.grpo:make_grpo"),
    "reward_model": Entry(RewardModelSettings, "agentrl.algorithms.reward_model:make_reward_model"),
    "sft": Entry(SFTSettings, "agentrl.algorithms.sft:make_sft"),
}


def check_settings(name: str, settings: Mapping[str, Any]) -> Settings:
    """The settings of the built-in algorithm ``name``, checked; no torch is imported.

    A user's own (``module:function``) has none: it is checked when it is made.

    Raises:
        ConfigError: no such algorithm, an unknown key, or a value out of range.
    """
    return _settings_of(name, settings)


def make_algorithm(
    name: str, settings: Mapping[str, Any] | None = None, *, base_dir: Path | None = None
) -> AlgorithmSpec:
    """The algorithm that ``algorithm.name`` and the other keys of ``algorithm`` describe.

    Args:
        name: a key of ``ALGORITHMS``, or ``module:function`` / ``file.py:function`` of a user's own that takes the
            settings as keyword arguments and returns an ``AlgorithmSpec``.
        settings: the algorithm's own settings; defaults for those left out.
        base_dir: the folder that a ``file.py`` is relative to.

    Raises:
        ConfigError: no such algorithm, an unknown key, a value out of range, or a function that returns another type.
    """
    given = dict(settings or {})
    if ":" in name:
        function = load_object(name, base_dir)
        _check_keywords(name, function, given)
        made = function(**given)
    else:
        checked = _settings_of(name, given)
        made = load_object(ALGORITHMS[name].make)(checked)
    if not isinstance(made, AlgorithmSpec):
        raise ConfigError(
            f"algorithm.name={name!r} must return an AlgorithmSpec, got {type(made).__name__}"
        )
    return made


def _settings_of(name: str, settings: Mapping[str, Any]) -> Settings:
    if name not in ALGORITHMS:
        raise _no_such_algorithm(name)
    kind = ALGORITHMS[name].settings
    _check_known(name, settings, [field.name for field in fields(kind)])
    return kind(**settings)


def _check_keywords(name: str, function: Any, settings: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        _check_known(name, settings, [parameter.name for parameter in parameters])
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in _NAMED and p.name not in settings
    ]
    if missing:
        raise ConfigError(
            f"algorithm.name={name!r} needs algorithm.{missing[0]}, which is not set; set it"
        )


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _check_known(name: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for key in settings:
        if key not in names:
            raise ConfigError(
                f"algorithm.{key} is no setting of algorithm {name!r}{_did_you_mean(key, names)}; "
                f"its settings are {', '.join(sorted(names)) or 'none'}"
            )


def _no_such_algorithm(name: str) -> ConfigError:
    return ConfigError(
        f"algorithm.name={name!r} is unknown{_did_you_mean(name, ALGORITHMS)}; choose one of "
        f"{', '.join(sorted(ALGORITHMS))}, or name your own as 'module:function'"
    )


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
