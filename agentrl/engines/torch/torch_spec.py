"""TorchEngine's specification: the section ``rollout.torch``; it imports no torch until it is
built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agentrl.engines.base import (
    EnginePlace,
    EngineSpec,
    EngineTraits,
    HostedEngine,
    WeightSender,
)
from agentrl.errors import ConfigError
from agentrl.types.section import Count
from agentrl.types.user_code.load import load_object


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Room of a TorchEngine: decode rows, and KV outside them.

    Args:
        context_tokens: positions of a row.
        num_rows: requests that run at once.
        parked_tokens: KV positions of waiting sessions outside the rows.
        in_order: forward passes whose rows and keys never vary, and KV that depends on the ids
            alone (docs/engines.md, Deterministic mode).
    """

    context_tokens: int
    num_rows: int
    parked_tokens: int
    in_order: bool = False

    @classmethod
    def of(cls, place: EnginePlace) -> RowPlan:
        """Each running request has ``context_tokens`` of ``kv_tokens``; the rest parks sessions. By
        default that is as much again.

        Raises:
            ConfigError: a value outside its range, named.
        """
        context = place.context_tokens
        rows = place.max_running
        kv_tokens = 2 * rows * context if place.kv_tokens is None else place.kv_tokens
        enough = f"at least EnginePlace.context_tokens={context}, one request's KV"
        rules = (
            ("dtype", place.dtype in ("float32", "bfloat16"), "'float32' or 'bfloat16'"),
            ("context_tokens", context >= 2, "at least 2"),
            ("max_running", rows >= 1, "at least 1"),
            ("kv_tokens", kv_tokens >= context, enough),
        )
        for name, holds, rule in rules:
            if not holds:
                raise ConfigError(
                    f"EnginePlace.{name} must be {rule}, got {getattr(place, name)!r}; change it "
                    "in the configuration"
                )
        num_rows = min(rows, kv_tokens // context)
        return cls(context, num_rows, kv_tokens - num_rows * context, place.deterministic)


class TorchEngineSpec(EngineSpec):
    """Engine in the process that plays the episodes (``rollout.engine: torch``)."""

    section: ClassVar[str] = "torch"

    device: str | None = None
    """``cpu``, or a CUDA device such as ``cuda:0``; by default that of ``placement.device``."""
    num_threads: Count | None = None
    """Threads of the engine's own thread in torch; by default ``placement.threads_per_rank``."""

    def traits(self) -> EngineTraits:
        """See ``EngineSpec.traits``."""
        gpus = int(self.device != "cpu")
        return EngineTraits(deterministic=True, images=True, gpus=gpus, routed_experts=True)

    def resolve(self, place: EnginePlace) -> EnginePlace:
        """See ``EngineSpec.resolve``.

        Raises:
            ConfigError: no room for one request's KV, or other threads than the trainer's where
                both must give the same bits.
        """
        RowPlan.of(place)
        own, trainers = self.num_threads, place.num_threads
        if place.deterministic and own and trainers and own != trainers:
            raise ConfigError(
                f"TorchEngineSpec.num_threads must be PlacementConfig.threads_per_rank={trainers} "
                "with EnginePlace.deterministic (sampler and trainer then give the same bits), got "
                f"{own}; leave it out"
            )
        return place

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> HostedEngine:
        """Loads the model and starts the engine's thread; it needs no sender.

        Raises:
            EngineError: the folder cannot be read, or holds a model that is not computed here.
        """
        engine: HostedEngine = load_object("agentrl.engines.torch.engine:TorchEngine")(
            place, self
        )
        return engine
