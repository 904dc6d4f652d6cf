"""Algorithm catalog: the one place where an algorithm's name becomes its record; looking settings
up needs no torch.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.records import (
    Advantages,
    Correction,
    Credit,
    FilterResult,
    PairLoss,
    TokenLoss,
)
from agentrl.algorithms.settings.base import (
    AlgorithmSettings,
    RewardModelSettings,
    SFTSettings,
)
from agentrl.algorithms.settings.policy_gradient import (
    CISPOSettings,
    DAPOSettings,
    DistillationSettings,
    DPPOSettings,
    DrGRPOSettings,
    ECHOSettings,
    GiGPOSettings,
    GRPOSettings,
    GSPOSettings,
    PFPPOSettings,
    PPOSettings,
    ReinforcePlusPlusSettings,
    ReMaxSettings,
    RLOOSettings,
    SAPOSettings,
    TurnGRPOSettings,
    VAPOSettings,
)
from agentrl.errors import did_you_mean
from agentrl.types import load_object
from agentrl.types.section import idle_settings
from agentrl.types.user_code.load import (
    UserFunction,
    built_in,
    check_takes,
    load_function,
    signature_of,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """A built-in algorithm: its settings, and where its ``(name, settings) -> AlgorithmSpec`` is
    within ``agentrl.algorithms.builtin``, loaded when made.
    """

    settings: type[AlgorithmSettings]
    make: str


ALGORITHMS: Mapping[str, AlgorithmEntry] = {
    "cispo": AlgorithmEntry(CISPOSettings, "group:make"),
    "dapo": AlgorithmEntry(DAPOSettings, "group:make_dapo"),
    "distillation": AlgorithmEntry(DistillationSettings, "reinforce:make_distillation"),
    "dppo": AlgorithmEntry(DPPOSettings, "group:make_dppo"),
    "dr_grpo": AlgorithmEntry(DrGRPOSettings, "group:make"),
    "echo": AlgorithmEntry(ECHOSettings, "group:make_echo"),
    "gigpo": AlgorithmEntry(GiGPOSettings, "group:make"),
    "grpo": AlgorithmEntry(GRPOSettings, "group:make"),
    "gspo": AlgorithmEntry(GSPOSettings, "group:make"),
    "pf_ppo": AlgorithmEntry(PFPPOSettings, "ppo:make_pf_ppo"),
    "ppo": AlgorithmEntry(PPOSettings, "ppo:make_ppo"),
    "reinforce_plus_plus": AlgorithmEntry(
        ReinforcePlusPlusSettings, "reinforce:make_reinforce_plus_plus"
    ),
    "remax": AlgorithmEntry(ReMaxSettings, "reinforce:make_remax"),
    "reward_model": AlgorithmEntry(RewardModelSettings, "supervised:make_reward_model"),
    "rloo": AlgorithmEntry(RLOOSettings, "group:make"),
    "sapo": AlgorithmEntry(SAPOSettings, "group:make"),
    "sft": AlgorithmEntry(SFTSettings, "supervised:make_sft"),
    "turn_grpo": AlgorithmEntry(TurnGRPOSettings, "group:make"),
    "vapo": AlgorithmEntry(VAPOSettings, "ppo:make_vapo"),
}


def settings_of(name: str) -> type[AlgorithmSettings] | None:
    """The settings of the built-in algorithm ``name``; None for a user's own, which is checked when
    it is made.

    Raises:
        ConfigError: no such algorithm.
    """
    entry = built_in(name, ALGORITHMS, partial(AlgorithmSettings.broken, "name"))
    return None if entry is None else entry.settings


def make_algorithm(
    name: str, settings: Mapping[str, Any] | None = None, *, base_dir: Path | None = None
) -> AlgorithmSpec:
    """The algorithm of a name and its settings.

    Args:
        name: a key of ``ALGORITHMS``, or ``module:function`` / ``file.py:function`` of a user's own
            that takes the settings as keyword arguments and returns an ``AlgorithmSpec``.
        settings: the algorithm's own settings; defaults for those left out.
        base_dir: the folder that a ``file.py`` is relative to.

    A setting that does nothing beside the others is told by a warning.

    Raises:
        ConfigError: no such algorithm, an unknown key, a value out of range, or a function that
            returns another type.
    """
    given = dict(settings or {})
    kind = settings_of(name)
    for fault in idle_settings(kind(**given), defaults=True) if kind is not None else ():
        key = ".".join(map(str, fault.keys[0]))
        told = fault.message.replace("{key}", key)
        fields = {"event": "setting_idle", "algorithm": name, "setting": key}
        logger.warning("algorithm %s: %s", name, told, extra=fields)
    return build_algorithm(name, given, base_dir=base_dir)


def build_algorithm(
    name: str, given: Mapping[str, Any], *, base_dir: Path | None = None
) -> AlgorithmSpec:
    """See ``make_algorithm``. A stage has settings that act in another stage alone, so that its
    configuration says which of them do nothing."""
    kind = settings_of(name)
    if kind is None:
        return _users_algorithm(name, given, base_dir)
    checked = kind(**given)
    make = load_object(f"agentrl.algorithms.builtin.{ALGORITHMS[name].make}")
    made: AlgorithmSpec = make(name, checked)
    for part, reference in checked.replaced.items():
        names, returns = _FUNCTIONS[part]
        broken = partial(checked.broken, part)
        takes = f"({', '.join(names)})"
        own = load_function(reference, base_dir, broken, takes)
        check_takes(own, reference, broken, takes, *names)
        made = _with_own(made, part, UserFunction(own, returns, broken, reference))
    named = {
        part: f"{type(checked).__name__}.{part}={own!r}"
        for part, own in checked.replaced.items()
    }
    return replace(made, sources=named)


def _users_algorithm(
    name: str, settings: Mapping[str, Any], base_dir: Path | None
) -> AlgorithmSpec:
    """What a user's own function makes of its settings; errors of its functions name it."""
    broken = partial(AlgorithmSettings.broken, "name")
    function = load_function(name, base_dir, broken, "the algorithm's settings")
    _check_keywords(name, function, settings)
    made: AlgorithmSpec = UserFunction(function, AlgorithmSpec, broken, name)(**settings)
    parts: dict[str, Any] = {
        part: UserFunction(own, returns, broken, name, part)
        for part, (_, returns) in _FUNCTIONS.items()
        if (own := getattr(made, part)) is not None
    }
    named = {part: f"AlgorithmSettings.name={name!r}: its {part}" for part in parts}
    return replace(made, **parts, sources=named)


def _check_keywords(name: str, function: Any, settings: Mapping[str, Any]) -> None:
    parameters = signature_of(function).parameters
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


def _with_own(made: AlgorithmSpec, part: str, own: Callable[..., Any]) -> AlgorithmSpec:
    """``made`` with a function of its own. What a built-in algorithm wraps around it (a KL term, a
    penalty for length) stays.
    """
    function = getattr(made, part)
    name = "loss" if part == "policy_loss" else part
    if isinstance(function, partial) and name in function.keywords:
        own = partial(function, **{name: own})
    parts: dict[str, Any] = {part: own}
    return replace(made, **parts)


_FUNCTIONS: Mapping[str, tuple[tuple[str, ...], type | tuple[type, ...]]] = {
    "keep_group": (("group",), FilterResult),
    "credit": (("rewards", "state"), Credit),
    "select": (("rewards",), np.ndarray),
    "reduction": (("counts",), np.ndarray),
    "advantages": (("credit",), Advantages),
    "policy_loss": (("inputs",), TokenLoss),
    "pair_loss": (("inputs",), PairLoss),
    "value_loss": (("inputs",), TokenLoss),
    "correction": (("inputs",), (Correction, type(None))),
    "next_state": (("state", "stats"), Mapping),
}
"""What each function of a record is given, by position, and what it returns."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
