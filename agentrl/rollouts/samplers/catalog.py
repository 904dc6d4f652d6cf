"""Sampler catalog: the one place where a sampler's name becomes what chooses tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.rollouts.samplers.mixture import Share
from agentrl.rollouts.samplers.settings import (
    DifficultyBandSettings,
    SamplerSettings,
    SignalSettings,
    UniformSettings,
)
from agentrl.types import Task, load_object
from agentrl.types.user_code.load import (
    UserFunction,
    built_in,
    check_takes,
    load_function,
    signature_of,
)

_FOLDER = "agentrl.rollouts.samplers"
_METHODS: Mapping[str, str] = {
    "next": "()",
    "observe": "(task_index, outcome)",
    "state": "()",
    "load": "(state)",
}


@dataclass(frozen=True, slots=True)
class SamplerEntry:
    """A built-in sampler: its settings, and where its class is, loaded when made."""

    settings: type[SamplerSettings]
    make: str


SAMPLERS: Mapping[str, SamplerEntry] = {
    "difficulty_band": SamplerEntry(
        DifficultyBandSettings, f"{_FOLDER}.difficulty_band:DifficultyBand"
    ),
    "signal": SamplerEntry(SignalSettings, f"{_FOLDER}.informative:Signal"),
    "uniform": SamplerEntry(UniformSettings, f"{_FOLDER}.uniform:Uniform"),
}


def settings_of(name: str) -> type[SamplerSettings] | None:
    """The settings of the built-in sampler ``name``; None for a user's own.

    Raises:
        ConfigError: no such sampler.
    """
    entry = built_in(name, SAMPLERS, _broken)
    return None if entry is None else entry.settings


def make_sampler(
    name: str,
    settings: Mapping[str, Any],
    tasks: Sequence[Task],
    *,
    seed: int,
    shuffle: bool,
    base_dir: Path,
    mixture: Sequence[Share] = (),
) -> Any:
    """The sampler of a name and its settings, with the methods of a ``TaskSampler``.

    Args:
        name: a key of ``SAMPLERS``, or ``module:function`` / ``file.py:function`` of a user's own.
        settings: the sampler's own settings; defaults for those left out.
        tasks: the data set.
        seed: ``run.seed``.
        shuffle: ``data.shuffle``.
        base_dir: the folder that a ``file.py`` is relative to.
        mixture: the sources of the tasks, where ``data.train`` gives them weights; for a sampler
            that plays epochs.

    Raises:
        ConfigError: no such sampler, a setting that it does not have, or what it returns is no
            sampler.
    """
    kind = settings_of(name)
    if kind is not None:
        built_in = load_object(SAMPLERS[name].make)
        weighed = {"mixture": mixture} if kind.plays_epochs else {}
        return built_in(kind(**settings), tasks, seed=seed, shuffle=shuffle, **weighed)
    function = users_function(name, settings, base_dir)
    made = UserFunction(function, object, _broken, name)(tasks, seed=seed, **settings)
    for method, arguments in _METHODS.items():
        _check_method(name, made, method, arguments)
    return made


def users_function(
    name: str, settings: Mapping[str, Any], base_dir: Path | None
) -> Callable[..., Any]:
    """The function or class of a user's own sampler, ``(tasks, seed, **settings)``.

    Raises:
        ConfigError: it does not exist, or does not take these.
    """
    names = ", ".join(["tasks", "seed=", *(f"{key}=" for key in settings)])
    takes = f"({names}), the tasks, run.seed and the settings beside its name"
    function = load_function(name, base_dir, _broken, takes)
    check_takes(function, name, _broken, takes, (), seed=0, **settings)
    return function


def _check_method(name: str, made: Any, method: str, arguments: str) -> None:
    own = getattr(made, method, None)
    wanted = arguments.strip("()")
    try:
        if not callable(own):
            raise TypeError(f"it has no method {method}")
        signature_of(own).bind(*(wanted.split(", ") if wanted else ()))
    except TypeError as error:
        raise _broken(
            f"={name!r} must return an object with the methods "
            f"{', '.join(key + value for key, value in _METHODS.items())}, got "
            f"{type(made).__name__}: {method}{arguments} cannot be called ({error}); see "
            "docs/curricula.md"
        ) from error


def _broken(rule: str) -> ConfigError:
    return SamplerSettings.broken("name", rule)
