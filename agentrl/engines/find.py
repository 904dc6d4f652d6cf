"""Engine lookup: ``rollout.engine`` becomes the class of an engine's specification, in one
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.engines.base import EngineSpec
from agentrl.engines.servers.environment import ServerEnvironment
from agentrl.engines.servers.section import ServersSpec
from agentrl.errors import ConfigError
from agentrl.types.user_code.load import UserFunction, built_in, check_takes, load_named

BUILT_IN: Mapping[str, str] = {
    "openai": "agentrl.engines.openai_spec:OpenAIEngineSpec",
    "sglang": "agentrl.engines.sglang.sglang_spec:SGLangEngineSpec",
    "torch": "agentrl.engines.torch.torch_spec:TorchEngineSpec",
    "vllm": "agentrl.engines.vllm.vllm_spec:VLLMEngineSpec",
}


def find_engine(name: str, base_dir: str | Path | None = None) -> type[EngineSpec]:
    """The specification that ``rollout.engine`` names.

    Args:
        name: a built-in one, or ``module:name`` of a subclass of ``EngineSpec`` or of a function
            without arguments that returns one.
        base_dir: where a relative ``file.py:name`` starts.

    Raises:
        ConfigError: there is no such engine, or what was found is no specification.
    """
    found = load_named(built_in(name, BUILT_IN, _broken) or name, base_dir, _broken)
    if callable(found) and not isinstance(found, type):
        check_takes(found, name, _broken, "no arguments")
        found = UserFunction(found, type, _broken, name)()
    if not (isinstance(found, type) and issubclass(found, EngineSpec)):
        raise ConfigError(
            f"rollout.engine={name!r} must name a subclass of agentrl.engines.EngineSpec, or a "
            f"function that returns one, got {found!r}"
        )
    if name not in BUILT_IN and (not found.section or found.section in BUILT_IN):
        raise ConfigError(
            f"rollout.engine={name!r} needs a section of its own: set {found.__name__}.section to "
            f"a name other than {', '.join(BUILT_IN)}, got {found.section!r}"
        )
    return found


def engines_with(*abilities: str) -> str:
    """The built-in engines whose ``EngineTraits`` have all of some abilities, for advice."""
    traits = {name: find_engine(name)().traits() for name in BUILT_IN}
    able = [
        repr(name)
        for name, own in sorted(traits.items(), reverse=True)
        if all(getattr(own, ability) for ability in abilities)
    ]
    return " or ".join(able)


def server_environments() -> dict[str, ServerEnvironment]:
    """The environments of the built-in engines of servers, by the engine's name."""
    kinds = {name: find_engine(name) for name in BUILT_IN}
    return {
        name: kind.server_environment
        for name, kind in kinds.items()
        if issubclass(kind, ServersSpec)
    }


def server_environment(name: str) -> ServerEnvironment:
    """The environment of an engine's servers.

    Raises:
        ConfigError: there is no such engine, or it starts no servers.
    """
    kind = find_engine(name)
    if not issubclass(kind, ServersSpec):
        able = ", ".join(server_environments())
        raise ConfigError(
            f"agentrl install needs an engine that starts servers, {able} or "
            f"module:name of a ServersSpec, got {name!r}; name one"
        )
    return kind.server_environment


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"rollout.engine{rule}")
