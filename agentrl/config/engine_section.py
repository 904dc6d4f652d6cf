"""Engine section: ``rollout.<section>`` as the engine's specification validates it, and rules by
its traits.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from agentrl.config.renamed_keys import with_new_name
from agentrl.config.schema import StageConfig
from agentrl.config.train_sections import RolloutConfig
from agentrl.engines.base import EngineSpec
from agentrl.engines.find import BUILT_IN, find_engine
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
        yield Fault((("rollout", "engine"),), f"{error}{near}")
    except ValidationError as error:
        yield from section_faults(error, kind, StageConfig, ("rollout", section))
    for name in extras.keys() - {section}:
        near = meant(RolloutConfig, (name,), StageConfig, ("rollout",))
        yield with_new_name(Fault((("rollout", name),), f"unknown key {{key}}{near}", extras[name]))


def engine_faults(stage: StageConfig, *, trains: bool) -> Iterator[Fault]:
    """Settings that the engine cannot serve, by its traits."""
    if list(engine_section_faults(stage)):
        return
    spec = stage_engine(stage)
    rollout = stage.rollout
    traits = spec.traits()
    engine = ("rollout", "engine")
    if trains and not traits.returns_ids:
        yield Fault(
            (engine,),
            f"rollout.engine={rollout.engine!r} cannot train (such a server returns neither token "
            "ids nor logprobs); use 'torch' or 'sglang' here",
        )
    if stage.run.deterministic and not traits.deterministic:
        yield Fault(
            (engine, ("run", "deterministic")),
            "run.deterministic needs rollout.engine='torch' (other engines batch by arrival), "
            f"got {rollout.engine!r}; set it, or run.deterministic=false",
        )
    most = traits.max_owners
    if most is not None and stage.num_hosts > most:
        owner = ("rollout", "num_workers") if rollout.num_workers else ("train", "world_size")
        urls = ("rollout", spec.section, "urls")
        given = urls if getattr(spec, "urls", ()) else ("rollout", "engine")
        yield Fault(
            (given, owner),
            f"{'.'.join(given)} needs {'.'.join(owner)} of at most {most} (the engine has one "
            f"owner, and each of these processes plays episodes), got {stage.num_hosts}; let them "
            f"start servers of their own, or set {'.'.join(owner)}={most}",
        )
