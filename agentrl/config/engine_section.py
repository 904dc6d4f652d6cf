"""Engine section: ``rollout.<section>`` as the engine's specification validates it, and rules by
its traits.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from agentrl.config.key_names import with_our_name
from agentrl.config.rules import fault
from agentrl.config.schema import StageConfig
from agentrl.config.train_sections import RolloutConfig
from agentrl.engines.base import EngineSpec
from agentrl.engines.find import BUILT_IN, engines_with, find_engine
from agentrl.errors import ConfigError, did_you_mean
from agentrl.types.section import Fault, meant, section_faults


def stage_engine(stage: StageConfig) -> EngineSpec:
    """The specification of the stage's engine, with the settings of its section.

    Raises:
        ConfigError: there is no such engine, or its section has a fault.
    """
    kind = find_engine(stage.rollout.engine, stage.base_dir)
    own = getattr(stage.rollout, kind.section, {})
    if isinstance(own, kind):
        return own
    return kind(**own)


def engine_section_faults(stage: StageConfig) -> Iterator[Fault]:
    """Faults of ``rollout.engine`` and of a plug-in's section; keys of ``rollout`` that nobody
    knows.

    The section of a plug-in is validated by its specification, which imports its module.
    """
    rollout = stage.rollout
    extras = rollout.__pydantic_extra__ or {}
    section = ""
    try:
        kind = find_engine(rollout.engine, stage.base_dir)
        section = kind.section
        if section not in RolloutConfig.model_fields:
            kind.model_validate(extras.get(section, {}))
    except ConfigError as error:
        near = "" if ":" in rollout.engine else did_you_mean(rollout.engine, BUILT_IN)
        yield fault(
            f"{error}{near}",
            "rollout.engine",
        )
    except ValidationError as error:
        yield from section_faults(error, kind, StageConfig, ("rollout", section))
    for name in extras.keys() - {section}:
        near = meant(RolloutConfig, (name,), StageConfig, ("rollout",))
        yield with_our_name(Fault((("rollout", name),), f"unknown key {{key}}{near}", extras[name]))


def engine_faults(stage: StageConfig, *, trains: bool) -> Iterator[Fault]:
    """Settings that the engine cannot serve, by its traits."""
    if list(engine_section_faults(stage)):
        return
    spec = stage_engine(stage)
    rollout = stage.rollout
    traits = spec.traits()
    if trains and not traits.returns_ids:
        yield fault(
            f"rollout.engine={rollout.engine!r} cannot train (such a server returns neither token "
            f"ids nor logprobs); use {engines_with('returns_ids')} here",
            "rollout.engine",
        )
    if stage.run.deterministic and not traits.deterministic:
        yield fault(
            f"run.deterministic needs rollout.engine={engines_with('deterministic')} (other "
            f"engines batch by arrival), got {rollout.engine!r}; set it, or "
            "run.deterministic=false",
            "rollout.engine",
            "run.deterministic",
        )
    most = traits.max_owners
    if most is not None and stage.num_hosts > most:
        owner = stage.hosts_setting
        given = f"rollout.{spec.section}.urls" if getattr(spec, "urls", ()) else "rollout.engine"
        yield fault(
            f"{given} needs {owner} of at most {most} (the engine has one owner, and each of these "
            f"processes plays episodes), got {stage.num_hosts}; let them start servers of their "
            f"own, or set {owner}={most}",
            given,
            owner,
        )
