"""Placement rules: what pools, the roles in them and the rollout workers may be together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from agentrl.config.rules import broken_by, fault
from agentrl.config.schema import StageConfig
from agentrl.config.sections import MAIN_POOL, PLACED_ROLES, PlacementConfig, PoolConfig
from agentrl.errors import did_you_mean
from agentrl.training.parallel.layout_rules import (
    check_backend_ranks,
    check_expert_ranks,
    check_ranks,
    shard_replicas,
)
from agentrl.types.section import Fault

_POOL_NAME = re.compile(rf"(?!{MAIN_POOL}$)[A-Za-z][\w-]*")


def placement_faults(placement: PlacementConfig, own_roles: Set[str]) -> Iterator[Fault]:
    """Rules of a run's processes; ``own_roles`` are the names under ``roles``."""
    yield from _inline_faults(placement)
    yield from _worker_faults(placement)
    yield from _range_faults(placement)
    yield from _pool_faults(placement)
    yield from _role_faults(placement, PLACED_ROLES | own_roles)
    yield from _rollout_pool_faults(placement)


def layout_faults(stage: StageConfig) -> Iterator[Fault]:
    """Rules of a stage about the ranks of each pool."""
    for name, pool in stage.placement.rank_pools.items():
        yield from _pool_layout_faults(stage, name, pool)


def _pool_layout_faults(stage: StageConfig, name: str, pool: PoolConfig) -> Iterator[Fault]:
    train, key = stage.train, _pool_key(name)
    broken = [*broken_by(check_backend_ranks, train.backend, pool.world_size, pool.pp_size)]
    sizes = pool.tp_size, pool.sp_size, pool.pp_size
    unequal = [*broken_by(check_ranks, pool.world_size, *sizes)]
    replicas = 1
    if train.shard == "hybrid" and not unequal:
        broken += broken_by(shard_replicas, pool.data_parallel, train.shard_size)
        replicas = pool.data_parallel // (train.shard_size or pool.data_parallel)
    if not broken + unequal and train.backend == "fsdp2":
        broken += broken_by(check_expert_ranks, pool.world_size // replicas, train.ep_size)
    for one in broken + unequal:
        # a layer below knows one pool alone
        message = one.message.replace("PlacementConfig.", f"{key}.")
        own = (".".join(map(str, field)) for field in one.keys)
        yield fault(message, *(re.sub(r"^placement\b", key, field) for field in own))
    if stage.run.deterministic and pool.world_size > 1:
        yield fault(
            f"run.deterministic needs {key}.world_size=1 (several ranks round sums otherwise than "
            f"the engine), got {pool.world_size}; set it, or run.deterministic=false",
            f"{key}.world_size",
            "run.deterministic",
        )
    episodes = train.mini_batch_prompts * stage.rollout.group_size
    if pool.data_parallel > episodes:
        divided = f" / {key}.tp_size / {key}.sp_size / {key}.pp_size" * (
            pool.data_parallel < pool.world_size
        )
        yield fault(
            f"{key}.world_size{divided} must be at most the episodes of a mini-batch, "
            f"train.mini_batch_prompts * rollout.group_size = {episodes} (a rank without one would "
            f"only wait), got {pool.data_parallel}; lower it, or raise the mini-batch",
            f"{key}.world_size",
            "train.mini_batch_prompts",
            "rollout.group_size",
        )


def _inline_faults(placement: PlacementConfig) -> Iterator[Fault]:
    if placement.mode != "inline":
        return
    for name, only in (("world_size", 1), ("rollout_workers", 0)):
        found = getattr(placement, name)
        if found != only:
            yield fault(
                f"placement.{name} must be {only} with placement.mode='inline', which starts no "
                f"process, got {list(found) if isinstance(found, tuple) else found}; set it so, or "
                "set placement.mode=ray",
                f"placement.{name}",
                "placement.mode",
            )
    fields = PlacementConfig.model_fields
    for name in ("nodes", "gpus", "cpus", "labels", "pools"):
        default = fields[name].get_default(call_default_factory=True)
        if getattr(placement, name) != default:
            yield fault(
                f"placement.{name} is asked of Ray, which placement.mode='inline' does not start; "
                "leave it out, or set placement.mode=ray",
                f"placement.{name}",
                "placement.mode",
            )


def _worker_faults(placement: PlacementConfig) -> Iterator[Fault]:
    for name in {
        "CPU",
        "GPU",
        "memory",
        "object_store_memory",
    } & placement.worker_resources.keys():
        yield fault(
            f"placement.worker_resources must name custom resources of Ray, got {name!r}, which "
            "Ray hands out itself: a worker gets the CPUs of its pool, and on GPUs as many as its "
            "engine needs; leave it out",
            "placement.worker_resources",
        )
    for name, value in placement.worker_resources.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            yield fault(
                "placement.worker_resources must give each Ray resource a number above 0, got "
                f"{name}: {value!r}",
                "placement.worker_resources",
            )


def _range_faults(placement: PlacementConfig) -> Iterator[Fault]:
    """Where something needs one number of rollout workers."""
    least, most = placement.worker_range
    pool, key = placement.worker_pool, _pool_key(placement.rollout or MAIN_POOL)
    shares = placement.workers_share
    for fixed, rule, other, remedy in (
        (
            shares,
            f"be one number with placement.rollout={placement.rollout!r}, which has them beside "
            "ranks, in places that are reserved for the whole run",
            "placement.rollout",
            "name a pool of their own",
        ),
        (
            not shares and (pool.nodes or pool.gpus),
            f"be one number beside {key}.nodes and {key}.gpus, which count the machines of all",
            key,
            "leave these out",
        ),
    ):
        if fixed and least < most:
            yield fault(
                f"placement.rollout_workers must {rule}, got [{least}, {most}]; set it so, "
                f"or {remedy}",
                "placement.rollout_workers",
                other,
            )


def _pool_faults(placement: PlacementConfig) -> Iterator[Fault]:
    for name in placement.pools:
        if not _POOL_NAME.fullmatch(name):
            yield fault(
                "placement.pools must have names of letters, digits, _ and - other than "
                f"{MAIN_POOL!r}, which is placement itself, got {name!r}; rename it",
                f"placement.pools.{name}",
            )
        if name not in (*placement.roles.values(), placement.rollout):
            yield fault(
                f"placement.pools.{name} holds nothing; name it in placement.roles or "
                "placement.rollout, or leave it out",
                f"placement.pools.{name}",
            )


def _role_faults(placement: PlacementConfig, roles: Set[str]) -> Iterator[Fault]:
    known = [MAIN_POOL, *placement.pools]
    named = {f"placement.roles.{role}": pool for role, pool in placement.roles.items()}
    for key, pool in {**named, "placement.rollout": placement.rollout or MAIN_POOL}.items():
        if pool not in known:
            yield fault(
                f"{key} must name a pool ({', '.join(known)}), got {pool!r}"
                f"{did_you_mean(pool, known)}; name one, or add it to placement.pools",
                key,
                "placement.pools",
            )
    for role in placement.roles.keys() - roles:
        yield fault(
            f"placement.roles must place {', '.join(sorted(roles))} (the actor is in "
            f"{MAIN_POOL}), got {role!r}{did_you_mean(role, roles)}; leave it out",
            f"placement.roles.{role}",
        )


def _rollout_pool_faults(placement: PlacementConfig) -> Iterator[Fault]:
    """Rollout workers and ranks that cannot share a pool."""
    name = placement.rollout
    if name is None or not placement.rollout_workers:
        return
    pool, key = placement.worker_pool, _pool_key(name)
    if placement.workers_share:
        if pool.nodes is not None:
            yield fault(
                f"{key}.nodes keeps ranks of a machine together, which rollout workers that share "
                f"their GPUs (placement.rollout={name!r}) cannot be placed among; leave it out, or "
                "name a pool of their own",
                f"{key}.nodes",
                "placement.rollout",
            )
        return
    if (
        pool.world_size != (pool.nodes or 1) * (pool.gpus or 1)
        or pool.data_parallel < pool.world_size
    ):
        yield fault(
            f"{key} has a layout of ranks (world_size, tp_size, sp_size, pp_size) and holds "
            "rollout workers alone, which placement.rollout_workers counts; leave it out",
            key,
            "placement.rollout",
        )
    least, most = placement.worker_range
    if least == most and least % (pool.nodes or 1):
        yield fault(
            f"placement.rollout_workers must be a multiple of {key}.nodes={pool.nodes}, got "
            f"{least}; change one of them",
            "placement.rollout_workers",
            f"{key}.nodes",
        )


def _pool_key(name: str) -> str:
    return "placement" if name == MAIN_POOL else f"placement.pools.{name}"
