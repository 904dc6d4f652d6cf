"""Algorithm catalog: the one place where an algorithm's name becomes its record; looking settings
up needs no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.settings import (
    AlgorithmSettings,
    GRPOSettings,
    RewardModelSettings,
    SFTSettings,
)
from agentrl.errors import did_you_mean
from agentrl.types import load_object


@dataclass(frozen=True, slots=True)
class Entry:
    """A built-in algorithm: its settings, and where its ``(settings) -> AlgorithmSpec`` is, loaded
    when made.
    """

    settings: type[AlgorithmSettings]
    make: str


ALGORITHMS: Mapping[str, Entry] = {
    "grpo": Entry(GRPOSettings, "agentrl.algorithms.builtin.grpo:make_grpo"),
    "reward_model": Entry(
        RewardModelSettings, "agentrl.algorithms.builtin.reward_model:make_reward_model"
    ),
    "sft": Entry(SFTSettings, "agentrl.algorithms.builtin.sft:make_sft"),
}


def settings_of(name: str) -> type[AlgorithmSettings] | None:
    """The settings of the built-in algorithm ``name``; None for a user's own, which is checked when
    it is made.

    Raises:
        ConfigError: no such algorithm.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name].settings
    if ":" in name:
        return None
    raise AlgorithmSettings.broken(
        "name",
        f"={name!r} is unknown{did_you_mean(name, ALGORITHMS)}; choose one of "
        f"{', '.join(sorted(ALGORITHMS))}, or name your own as 'module:function'",
    )


def make_algorithm(
    name: str, settings: Mapping[str, Any] | None = None, *, base_dir: Path | None = None
) -> AlgorithmSpec:
    """The algorithm of a name and its settings.

    Args:
        name: a key of ``ALGORITHMS``, or ``module:function`` / ``file.py:function`` of a user's own
            that takes the settings as keyword arguments and returns an ``AlgorithmSpec``.
        settings: the algorithm's own settings; defaults for those left out.
        base_dir: the folder that a ``file.py`` is relative to.

    Raises:
        ConfigError: no such algorithm, an unknown key, a value out of range, or a function that
            returns another type.
    """
    given = dict(settings or {})
    kind = settings_of(name)
    if kind is not None:
        made = load_object(ALGORITHMS[name].make)(kind(**given))
    else:
        function = load_object(name, base_dir)
        _check_keywords(name, function, given)
        made = function(**given)
    if not isinstance(made, AlgorithmSpec):
        raise AlgorithmSettings.broken(
            "name", f"={name!r} must return an AlgorithmSpec, got {type(made).__name__}"
        )
    return made


def _check_keywords(name: str, function: Any, settings: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    names = ", ".join(sorted(parameters)) or "none"
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in () if takes_any else settings:
        if key not in parameters:
            raise AlgorithmSettings.broken(
                key,
                f" is no setting of algorithm {name!r}{did_you_mean(key, parameters)}; "
                f"its settings are {names}",
            )
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in _NAMED and p.name not in settings
    ]
    if missing:
        raise AlgorithmSettings.broken(
            missing[0], f" is needed by the algorithm {name!r}, and not set; set it"
        )


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
