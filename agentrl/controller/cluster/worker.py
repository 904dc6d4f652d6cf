"""Worker: one process of the cluster, with the roles of a rank, an episode host, or both."""

from __future__ import annotations

import math
import os
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.phases import RankPhases, RankTime
from agentrl.controller.cluster.rollout_pool import ProcessInfo
from agentrl.engines import PauseMode, SharedGpus
from agentrl.engines.tensor_parallel import Shards
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.errors import ConfigError, TrainingError
from agentrl.training import Actor, DistSpec, join, leave, whole_checksums
from agentrl.training.device import gpus
from agentrl.training.out_of_memory import explaining_memory
from agentrl.types.user_code.wall import failed_as, wall
from agentrl.weight_sync import (
    PartBits,
    Resharder,
    ServedCopy,
    ServedDtype,
    ServedWeights,
    ShardSender,
    ShardSession,
    TrainerReference,
    WeightsReport,
    make_resharder,
    publish_in_process,
    trainer_reference,
)


class RoleSpec(Protocol):
    """What a role is made of; picklable."""

    def build(self, place: DistSpec) -> object:
        """The role on one rank; every rank builds it."""
        ...


class Worker:
    """Runs in a Ray actor, or in the driver itself (``placement.mode: inline``).

    Args:
        name: of the episodes' thread.
    """

    def __init__(self, name: str) -> None:
        self._place: DistSpec | None = None
        self._roles: dict[str, object] = {}
        self._served: dict[str, ServedCopy] = {}
        self._resharders: dict[str, Resharder] = {}
        self._sender: ShardSender | None = None
        self.rollouts = EpisodeHost(name)
        self.phases = RankPhases(self._roles, self.rollouts)

    def join(self, place: DistSpec, threads: int) -> None:
        """Becomes a rank, with so many torch threads; a worker that is none only hosts episodes."""
        torch.set_num_threads(threads)
        self._place = place
        join(place)

    def describe(self) -> ProcessInfo:
        """Where this process runs."""
        rank = None if self._place is None else self._place.rank
        on_gpu = self._place is not None and self._place.device != "cpu"
        device = str(gpus()[0]) if on_gpu else "the CPU"
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
        return ProcessInfo(
            socket.gethostname(),
            os.getpid(),
            rank=rank,
            device=device,
            gpu=seen.split(",")[0] if on_gpu else "",
        )

    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        """Builds a stage's roles; what an earlier stage left, its episodes too, is ended first."""
        assert self._place is not None, "a worker without a rank hosts no roles"
        self._end_stage()
        for name, spec in roles.items():
            with explaining_memory(f"building the role {name!r}", spec, self._place.device):
                self._roles[name] = spec.build(self._place)

    def call(self, target: str, method: str, *args: Any) -> tuple[Any, list[RankTime]]:
        """Runs a method of a role, of the episode host (``rollouts``), of the weights
        (``weights``) or of the phases (``phases``).

        Returns:
            What it returns, and what lasted here since the last call that returned.

        Raises:
            ConfigError: this stage has not built the role.
            TrainingError: a role's method raised; it names rank and host, and has the traceback.
        """
        answer = self._run(target, method, *args)
        return answer, self.phases.take_times()

    def _run(self, target: str, method: str, *args: Any) -> Any:
        hosted = {"rollouts": self.rollouts, "phases": self.phases}
        if target in hosted:
            return getattr(hosted[target], method)(*args)
        if target == "weights":
            with self.phases.timed(f"weights.{method}"):
                return getattr(self, method)(*args)
        if target not in self._roles:
            raise ConfigError(
                f"role {target!r} is not built in this stage, which has "
                f"{', '.join(self._roles) or 'none'}; add its RoleSpec to the stage's roles"
            )
        assert self._place is not None
        rank = self._place.rank
        what = f"rank {rank}: {target}.{method}"
        role = self._roles[target]
        explaining = explaining_memory(
            what, getattr(role, "spec", None), self._place.device
        )
        try:
            # a role may be the user's: an exit ends its call, and not this process
            with (
                self.phases.timed(f"{target}.{method}"),
                wall(failed_as(TrainingError, f"{what} raised")),
                explaining,
            ):
                return getattr(role, method)(*args)
        except TrainingError as error:
            error.rank = rank if error.rank is None else error.rank
            error.host = error.host or socket.gethostname()
            error.traceback_text = error.traceback_text or traceback.format_exc()
            raise

    def publish(
        self, role: str, version: int, mode: PauseMode, dtype: ServedDtype
    ) -> WeightsReport | None:
        """Gives the engine of this rank, paused by ``mode``, the role's weights; None without an
        engine here. Collective, since weights are sharded."""
        host = self.rollouts
        with host.clock_paused():
            self.phases.enter("publish", role)
            actor = self._with_weights(role)
            if role not in self._resharders:
                made = make_resharder(actor, dtype, has_engine=host.engine is not None)
                self._resharders[role] = made
            return publish_in_process(
                actor,
                host.engine,
                version,
                mode,
                host.noise,
                dtype=dtype,
                make_room=partial(self.phases.enter, "rollout"),
                resharder=self._resharders[role],
            )

    def share_server(
        self, ranks: tuple[int, ...], ids: tuple[str, ...], sleeps: bool
    ) -> None:
        """Before a stage's engines start.

        Args:
            ranks: that have a server together, this one too; the first owns it.
            ids: GPUs of the server; none where it takes none.
            sleeps: whether engines and trainer have them in turn.
        """
        self.rollouts.shared = SharedGpus(ids) if ids else None
        self.rollouts.ranks = ranks
        self.phases.begin(sleeps)

    def serve(
        self, role: str, dtype: ServedDtype, version: int, changes: bool
    ) -> tuple[tuple[TensorSlice, ...], TrainerReference | None, Mapping[str, int] | None]:
        """Renews what this rank serves of the role's weights to engines in other processes.
        Collective.

        Returns:
            What it has; by rank 0 what they are verified by, and with ``changes`` the checksums of
            the weights before, where it knows what changed since.
        """
        self.phases.enter("publish", role)
        actor = self._with_weights(role)
        served = self.served_copy(role)
        base = served.checksum if changes else None
        renewed = served.renew(actor.parts(dtype), version, changes=base is not None)
        served.checksum = whole_checksums(renewed)
        reference = trainer_reference(actor, dtype, served.checksum)
        # The engines take what was kept: the trainer may give its memory back before they do.
        self.phases.enter("rollout")
        is_first = dist.get_rank() == 0
        return served.places(), reference if is_first else None, base if is_first else None

    def hand_over(
        self, role: str, weights: ServedWeights, shards: Shards, mode: PauseMode
    ) -> WeightsReport | None:
        """Gives the servers that ranks have together what these serve, each rank its own part of
        it; None where this one owns no server. Collective.

        Args:
            role: whose served copies were renewed.
            weights: as the ranks keep them.
            shards: what each rank of a server holds.
            mode: what becomes of requests in flight.
        """
        host = self.rollouts
        served = self.served_copy(role)
        own = shards[host.ranks.index(dist.get_rank())]
        if role not in self._resharders:
            wanted = [part for tensor in own for part in tensor.parts]
            dtype = getattr(torch, weights.dtype)
            made = Resharder(served.places(), wanted, dtype, torch.device(host.device))
            self._resharders[role] = made
        parts = self._resharders[role].run(served.parts(weights.version))
        if host.engine is not None:
            [report] = host.update(weights, weights.version, mode, parts=parts)
            # of all its ranks
            numbers = sum(math.prod(tensor.shape) for rank in shards for tensor in rank)
            return replace(report, bytes=numbers * getattr(torch, weights.dtype).itemsize)
        if self._sender is None:
            self._sender = ShardSender(host.ranks, device=host.device)
        session = ShardSession(self._sender, own, weights.dtype)
        for part in parts:
            session.put(part.name, part.tensor)
        session.commit()
        return None

    def served_copy(self, role: str) -> ServedCopy:
        """What this rank serves of a role's weights."""
        return self._served.setdefault(role, ServedCopy())

    def served_parts(
        self, role: str, version: int, names: Sequence[str], changes: bool
    ) -> list[PartBits]:
        """Parts of what this rank serves, beside what it trains; see ``ServedCopy.read``."""
        return self._served[role].read(version, names, changes=changes)

    def close(self) -> None:
        """Ends everything that this worker started."""
        self._end_stage()
        if self._place is not None:
            leave()

    def _end_stage(self) -> None:
        self.rollouts.close()
        # The phases hold this very mapping, so it is emptied and not replaced.
        self._roles.clear()
        self._served.clear()
        self._resharders.clear()
        self._sender = None

    def _with_weights(self, role: str) -> Actor:
        found = self._roles.get(role)
        if not hasattr(found, "weights"):
            raise ConfigError(
                f"role {role!r} has no weights that engines could serve, it is a "
                f"{type(found).__name__}; publish one that is trained"
            )
        # whatever its class, it is published by what an Actor has for that
        return cast(Actor, found)
