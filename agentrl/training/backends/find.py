"""Backend lookup: ``train.backend`` becomes a class, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.training.backends.backend import TrainBackend
from agentrl.types.user_code.load import built_in, load_named

BUILT_IN: Mapping[str, str] = {
    "fsdp2": "agentrl.training.backends.fsdp2:Fsdp2Backend",
    "megatron": "agentrl.training.backends.megatron.backend:MegatronBackend",
    "plain": "agentrl.training.backends.plain:PlainBackend",
}


def find_backend(name: str, base_dir: str | Path | None = None) -> type[TrainBackend]:
    """The class that ``train.backend`` names.

    Args:
        name: a built-in one, or ``module:name`` or ``file.py:name`` of a subclass of
            ``TrainBackend``.
        base_dir: where a relative ``file.py:name`` starts.

    Raises:
        ConfigError: there is no such backend.
    """
    found = load_named(built_in(name, BUILT_IN, _broken) or name, base_dir, _broken)
    if not (isinstance(found, type) and issubclass(found, TrainBackend)):
        raise _broken(
            f"={name!r} must name a subclass of agentrl.training.TrainBackend, got {found!r}"
        )
    return found


def absolute(name: str, base_dir: str | Path) -> str:
    """The name as any process can look it up: a relative file starts from ``base_dir``."""
    source, _, own = name.rpartition(":")
    if not source.endswith(".py"):
        return name
    return f"{Path(base_dir, Path(source).expanduser()).resolve()}:{own}"


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"TrainConfig.backend{rule}")
