"""Key names: the keys of the settings that an error names by their spec's class and field."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agentrl.algorithms import ALGORITHMS, AlgorithmSettings
from agentrl.config.schema import RunConfig
from agentrl.errors import AgentRLError
from agentrl.rollouts.samplers.catalog import SAMPLERS
from agentrl.rollouts.samplers.settings import SamplerSettings
from agentrl.types.section import Section, sections_within

_FIELD = re.compile(r"\b([A-Z]\w+)\.([a-z]\w*)\b")


# Classes that are made of one section, whose fields have the section's names.
_MADE_OF: Mapping[str, str] = {
    "EnginePlace": "rollout",
    "RendererSpec": "model",
    "ToolEnv": "env",
}

# Fields with another name than their setting, or of another section.
_DERIVED: Mapping[str, str] = {
    "ActorSpec.model_path": "model.path",
    "AgentProgramSpec.command": "env.agent_command",
    "CriticSpec.model_path": "critic.path",
    "EnginePlace.deterministic": "run.deterministic",
    "EnginePlace.model": "model.path",
    "PromptSampler.tasks": "data.train",
    "ReferenceSpec.model_path": "reference.path",
    "RendererSpec.family": "model.renderer",
    "RendererSpec.model": "model.path",
    "RewardModelSpec.model_path": "reward.model.path",
    "RolloutSpec.parser": "model.tool_parser",
    "RolloutSpec.rubric": "reward.functions",
    "RunDirectory.root": "run.dir",
}


def with_keys(message: str) -> str:
    """``message`` with ``optim.lr`` where it says ``OptimSpec.lr``, also in a text that came from
    another process.

    Below ``run`` an error names a setting by its spec's class and field, as a user of Python knows
    it.
    """
    return _FIELD.sub(_key, message)


@contextmanager
def naming_keys() -> Iterator[None]:
    """Gives an AgentRLError that leaves it the keys of its settings; also a decorator."""
    try:
        yield
    except AgentRLError as error:
        error.args = tuple(
            with_keys(part) if isinstance(part, str) else part for part in error.args
        )
        raise


def _key(named: re.Match[str]) -> str:
    if named[0] in _DERIVED:
        return _DERIVED[named[0]]
    prefix = _prefixes().get(named[1])
    return named[0] if prefix is None else f"{prefix}.{named[2]}"


@functools.cache
def _prefixes() -> Mapping[str, str]:
    """Where each section's fields are, by the name of its class."""
    prefixes = dict(_MADE_OF)
    prefixes |= {section.__name__: key for key, section in sections_within(RunConfig)}
    kinds: list[type[Section]] = [
        AlgorithmSettings,
        *(row.settings for row in ALGORITHMS.values()),
    ]
    for kind in kinds:
        prefixes[kind.__name__] = "algorithm"
        prefixes |= {s.__name__: f"algorithm.{key}" for key, s in sections_within(kind)}
    samplers: list[type[Section]] = [
        SamplerSettings,
        *(row.settings for row in SAMPLERS.values()),
    ]
    prefixes |= {kind.__name__: "data.sampler" for kind in samplers}
    return prefixes
