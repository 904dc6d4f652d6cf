"""Episode host: an engine and the episodes that use it, in this process."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

from agentrl.controller.cluster.rollout_pool import (
    GroupKey,
    Incident,
    ProcessInfo,
    RolloutWorkerSpec,
)
from agentrl.engines import (
    EngineLayout,
    EnginePlan,
    HostedEngine,
    MessageEngine,
    PauseMode,
    SharedGpus,
)
from agentrl.engines.probe import ProbeNoise
from agentrl.errors import ConfigError
from agentrl.metrics.memory import rss_gib
from agentrl.rollouts import (
    EpisodeRunner,
    GroupOutcome,
    GroupRequest,
    GroupState,
    paced_collector,
)
from agentrl.training import WeightPart
from agentrl.types import Trajectory
from agentrl.weight_sync import (
    OwnWeights,
    ServedWeights,
    StaleWeightsError,
    WeightsReport,
    make_sender,
    update_engine,
)

logger = logging.getLogger(__name__)


class EpisodeHost:
    """``RolloutPool`` of one engine, with its episodes beside it in a thread of their own.

    ``setup`` and ``close`` are called while no other call runs. The other methods may be called
    from any thread.

    Args:
        name: of the episodes' thread.
    """

    def __init__(self, name: str = "episodes") -> None:
        self._name = name
        self._opened = ExitStack()
        self._runner: EpisodeRunner | None = None
        self.engine: HostedEngine | None = None
        """What generates; None outside of a stage with rollouts, and with an engine of messages."""
        self.noise = ProbeNoise()
        """Of the engine's comparisons with its trainer."""
        self._weights: ServedWeights | OwnWeights | None = None
        # whether it keeps what it is sent, since changes are put on it
        self._keeps = False
        self._copies: dict[str, Tensor] = {}
        self._copied: Mapping[str, int] = {}
        self._announces = False
        self.shared: SharedGpus | None = None
        """The GPUs that the server of this rank has in turn with its ranks."""
        self.ranks: tuple[int, ...] = ()
        """Those that have the server together; none where it is no rank's."""

    @property
    def device(self) -> str:
        """Where weights wait for the servers of this process's rank."""
        return "cpu" if self.shared is None else "cuda"

    def setup(self, spec: RolloutWorkerSpec | None) -> None:
        self.close()
        if spec is None:
            return
        with ExitStack() as opened:
            opened.enter_context(paced_collector())
            transport = spec.engine.spec.traits().transport
            sender = make_sender(
                transport, self._tensors, self._elsewhere, self.ranks, self.device
            )
            self._announces = transport is not None and transport.name == "broadcast"
            engine = self._plan(spec).build(sender)
            on_close = None
            if _has_weights(engine):
                self.engine = engine
                self.noise = ProbeNoise()
                opened.callback(engine.close)
            else:
                # Its connections belong to the episodes' loop, so they are closed there.
                on_close = cast(MessageEngine, engine).close
            self._runner = EpisodeRunner(
                spec.rollout, engine, name=self._name, on_close=on_close
            )
            opened.callback(self._runner.close)
            self._opened = opened.pop_all()

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        self._hosted.submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        return self._hosted.collect(timeout_s)

    def take_ended(self) -> list[Trajectory]:
        return self._hosted.take_ended()

    def cancel(self, keys: Sequence[GroupKey]) -> None:
        for label, group_index in keys:
            self._hosted.cancel([group_index], label=label)

    def in_flight(self) -> list[GroupState]:
        return self._hosted.in_flight()

    def take_failures(self) -> list[Incident]:
        return [] if self.engine is None else [*self.engine.take_notices()]

    def now(self) -> dict[str, Any]:
        longest = [] if self._runner is None else self._runner.longest()
        return {"gib": rss_gib(), "episodes": longest}

    def fault(self) -> str:
        """Why the engine answers nothing any more; empty for a sound one."""
        state = "serving" if self.engine is None else self.engine.health().state
        return f"its engine is {state}" if state in ("corrupt", "closed") else ""

    def layout(self) -> EngineLayout | None:
        return None if self.engine is None else self.engine.layout()

    def update(
        self,
        weights: ServedWeights | OwnWeights,
        version: int,
        mode: PauseMode,
        *,
        joins: bool = False,
        parts: Iterable[WeightPart] | None = None,
    ) -> list[WeightsReport]:
        """See ``RolloutPool.update``.

        Args:
            weights: as the ranks keep them.
            version: of them.
            mode: what becomes of requests in flight.
            parts: those that this rank writes for a server that it has together with others; all
                of them take part then. None for all tensors.
            joins: whether the ranks may go on to the next version meanwhile. All tensors then come
                before the engine hears of one; where they did not, nothing is changed or returned.
        """
        assert self.engine is not None, "weights go to an engine"
        self._weights = weights
        delivery = None
        tensors: Iterable[tuple[str, Tensor]]
        if parts is not None:
            tensors = ((part.name, part.tensor) for part in parts)
        elif isinstance(weights, OwnWeights):
            tensors = weights.tensors()
        elif self._announces:
            tensors = weights.announced()
        else:
            tensors = delivery = weights.tensors(self._base(weights))
            if self._keeps:
                tensors = self._kept(delivery)
        if joins:
            try:
                tensors = list(tensors)
            except StaleWeightsError:
                return []
        with self.clock_paused():
            report = update_engine(
                self.engine, tensors, lambda: weights.reference, version, mode, self.noise
            )
        logger.info(
            "the engine took version %d in %.2f s",
            version,
            report.seconds,
            extra={"event": "weights_taken", "version": version, "seconds": report.seconds},
        )
        if self._keeps:
            self._copied = weights.reference.checksum
        return [report if delivery is None else replace(report, bytes=delivery.num_bytes)]

    def clock_paused(self) -> AbstractContextManager[None]:
        """No deadline of an episode here counts within: its engine is paused for new weights."""
        return nullcontext() if self._runner is None else self._runner.deadlines.paused()

    def describe(self) -> list[ProcessInfo]:
        return [ProcessInfo(host=socket.gethostname(), pid=os.getpid())]

    def close(self) -> None:
        """Ends the episodes, then the engine."""
        opened = self._opened
        self._opened = ExitStack()
        self._runner = None
        self.engine = None
        self._weights = None
        self._keeps, self._copies = False, {}
        opened.close()

    def _plan(self, spec: RolloutWorkerSpec) -> EnginePlan:
        """How the engine is built on the GPUs of this process's ranks; those that train wait in the
        host's memory by now."""
        plan = spec.engine
        if self.shared is None:
            return plan
        free_bytes = torch.cuda.mem_get_info()[0] if spec.sleeps else 0
        trainer_bytes = plan.place.shared.trainer_bytes if plan.place.shared else 0
        shared = replace(self.shared, free_bytes=free_bytes, trainer_bytes=trainer_bytes)
        return replace(plan, place=replace(plan.place, shared=shared))

    def _base(self, weights: ServedWeights) -> Callable[[str], Tensor] | None:
        """Reads the weights that changes are of: from the engine, or where it gives none back, from
        the copies here. None where there are others, and whole tensors must be sent."""
        if weights.base is None:
            return None
        assert self.engine is not None, "changes are of an engine's weights"
        read: Callable[[str], Tensor] | None = getattr(self.engine, "read", None)
        self._keeps = read is None
        held = self._copied if self._keeps else self.engine.checksum()
        if held != weights.base:
            logger.info(
                "the weights whose changes are known are not here, and all of version %d are sent",
                weights.version,
                extra={"event": "whole_weights", "version": weights.version},
            )
            return None
        return read or self._copies.__getitem__

    def _kept(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Keeps copies in place of those that are here; none of a delivery that breaks off."""
        self._copies, self._copied = {}, {}
        kept: dict[str, Tensor] = {}
        for name, tensor in tensors:
            kept[name] = tensor
            yield name, tensor
        self._copies = kept

    def _tensors(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """What the ranks serve, for a server that was started again.

        Raises:
            StaleWeightsError: another version than this.
        """
        if self._weights is None or self._weights.version != version:
            raise StaleWeightsError(f"the ranks serve another version than {version}")
        elsewhere = self._elsewhere() if self._announces else None
        yield from elsewhere.announced() if elsewhere else self._weights.tensors()

    def _elsewhere(self) -> ServedWeights | None:
        """What ranks in other processes serve."""
        return self._weights if isinstance(self._weights, ServedWeights) else None

    @property
    def _hosted(self) -> EpisodeRunner:
        if self._runner is None:
            raise ConfigError(
                "this stage has no rollouts: its algorithm learns from demonstrations"
            )
        return self._runner


def _has_weights(engine: HostedEngine | MessageEngine) -> TypeGuard[HostedEngine]:
    return hasattr(engine, "begin_update")
