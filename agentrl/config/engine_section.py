"""Engine section: ``rollout.<section>`` as the engine's specification validates it, and rules by
its traits.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from agentrl.config.foreign_keys import with_our_name
from agentrl.config.rules import fault, sandbox_faults
from agentrl.config.schema import StageConfig
from agentrl.config.train_sections import RolloutConfig
from agentrl.engines.base import EngineSpec, EngineTraits
from agentrl.engines.find import engines_with, find_engine
from agentrl.errors import ConfigError
from agentrl.types.section import Fault, meant, section_faults


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
        yield fault(str(error), "rollout.engine")
    except ValidationError as error:
        yield from section_faults(error, kind, StageConfig, ("rollout", section))
    for name in extras.keys() - {section}:
        near = meant(RolloutConfig, (name,), StageConfig, ("rollout",))
        yield with_our_name(
            Fault((("rollout", name),), f"unknown key {{key}}{near}", extras[name])
        )


def engine_faults(stage: StageConfig, *, trains: bool) -> Iterator[Fault]:
    """Settings that the engine cannot serve, by its traits."""
    # A faulty section makes no specification whose traits could be asked.
    if list(engine_section_faults(stage)):
        return
    spec = stage.engine_spec
    rollout = stage.rollout
    traits = spec.traits()
    yield from sandbox_faults(stage)
    if trains and not traits.returns_ids:
        yield fault(
            f"rollout.engine={rollout.engine!r} cannot train (such a server returns neither token "
            f"ids nor logprobs); use {engines_with('returns_ids')} here",
            "rollout.engine",
        )
    replays_routing = stage.train.router_replay == "rollout"
    if trains and replays_routing and not (traits.routed_experts or stage.run.replay):
        yield fault(
            "train.router_replay='rollout' needs an engine that tells the experts of its tokens, "
            f"{engines_with('routed_experts')}, got rollout.engine={rollout.engine!r}; set it, or "
            "train.router_replay=off",
            "rollout.engine",
            "train.router_replay",
        )
    if stage.run.deterministic and not traits.deterministic:
        yield fault(
            f"run.deterministic needs rollout.engine={engines_with('deterministic')} (other "
            f"engines batch by arrival), got {rollout.engine!r}; set it, or "
            "run.deterministic=false",
            "rollout.engine",
            "run.deterministic",
        )
    if stage.placement.rollout_workers:
        yield from _worker_gpu_faults(stage, spec, traits)
    else:
        shared = traits.ranks_a_server if traits.gpus else 0
        yield from _shared_gpu_faults(stage, spec, shared)
    yield from _broadcast_faults(stage, spec, traits)
    most = traits.max_owners
    if most is not None and stage.num_hosts > most:
        owner = stage.hosts_setting
        given = (
            f"rollout.{spec.section}.urls"
            if getattr(spec, "urls", ())
            else "rollout.engine"
        )
        yield fault(
            f"{given} needs {owner} of at most {most} (the engine has one owner, and each of these "
            f"processes plays episodes), got {stage.num_hosts}; let them start servers of their "
            f"own, or set {owner}={most}",
            given,
            owner,
        )


def _broadcast_faults(
    stage: StageConfig, spec: EngineSpec, traits: EngineTraits
) -> Iterator[Fault]:
    """Rules of weights that the first rank sends from its GPU to those of servers."""
    way, own = traits.transport, stage.placement
    if way is None or (way.name, way.device) != ("broadcast", "cuda"):
        return
    if traits.ranks_a_server and (own.workers_share or not own.rollout_workers):
        section = f"rollout.{spec.section}"
        yield fault(
            f"{section}.weight_sync='broadcast' with device='cuda' goes through NCCL, which "
            "refuses two ranks on one GPU, and needs servers on other GPUs than the ranks that "
            "train; set placement.rollout_workers with GPUs of their own, give servers by urls, "
            "leave device out (gloo), or set weight_sync=http or disk",
            f"{section}.weight_sync",
            "placement.rollout_workers",
        )


def _shared_gpu_faults(
    stage: StageConfig, spec: EngineSpec, ranks_a_server: int
) -> Iterator[Fault]:
    """Rules of servers on the GPUs of the ranks; which of these are on one node is known later."""
    own = stage.placement
    if not ranks_a_server or own.device != "cuda":
        return
    section = f"rollout.{spec.section}"
    if own.world_size % ranks_a_server:
        yield fault(
            f"{section}.tp_size must divide the ranks of each node (a server beside them has the "
            f"GPUs of so many), got {ranks_a_server} for placement.world_size={own.world_size}; "
            "change one of them",
            f"{section}.tp_size",
            "placement.world_size",
        )
    if (servers := getattr(spec, "num_servers", 1)) > 1:
        yield fault(
            f"{section}.num_servers must be 1 for servers on the GPUs of the ranks (each has its "
            f"GPUs' memory for itself), got {servers}; leave it out, or set "
            "placement.rollout_workers",
            f"{section}.num_servers",
            "placement.rollout_workers",
        )
    if stage.sleeps or getattr(spec, "kv_memory_fraction", 0) is not None:
        return
    yield fault(
        f"{section}.kv_memory_fraction must be set for servers that compute on the GPUs of the "
        "ranks while these train (by default they take what the trainer needs), got none; set it, "
        "or rollout.schedule=sync",
        f"{section}.kv_memory_fraction",
        "rollout.schedule",
    )


def _worker_gpu_faults(
    stage: StageConfig, spec: EngineSpec, traits: EngineTraits
) -> Iterator[Fault]:
    """Rules of the GPUs of rollout workers: those of their pool, or what ranks leave."""
    own, needed = stage.placement, traits.gpus
    pool, name = own.worker_pool, own.rollout
    if own.device != "cuda" and pool.gpus is None:
        return
    section = f"rollout.{spec.section}"
    what = (
        f"{section}.num_servers * {section}.tp_size" if traits.ranks_a_server else section
    )
    if own.workers_share:
        if needed > 1:
            yield fault(
                f"placement.rollout={name!r} gives each rollout worker a part of one rank's GPU, "
                f"and {what} needs {needed} GPUs; name a pool of their own, or lower it",
                "placement.rollout",
                section,
            )
        servers = needed and traits.ranks_a_server
        if servers and getattr(spec, "kv_memory_fraction", 0) is None:
            yield fault(
                f"{section}.kv_memory_fraction must be set for servers that share a GPU with a "
                f"rank (placement.rollout={name!r}), got none; set it",
                f"{section}.kv_memory_fraction",
                "placement.rollout",
            )
    elif name is not None and pool.gpus is not None:
        key = f"placement.pools.{name}"
        if needed > pool.gpus:
            yield fault(
                f"{what} = {needed} GPUs of a rollout worker must be of one machine, and "
                f"{key}.gpus={pool.gpus} are all that it takes of each; change one of them",
                section,
                f"{key}.gpus",
            )
        elif own.worker_range[0] * needed != pool.world_size:
            yield fault(
                f"placement.rollout_workers * {what} = {own.worker_range[0]} * {needed} must be "
                f"the GPUs of {key}, {pool.nodes or 1} * {pool.gpus}; change one of them",
                "placement.rollout_workers",
                f"{key}.gpus",
            )
