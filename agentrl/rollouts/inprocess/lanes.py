"""Everything that holds or points into KV memory, made and dropped as one (``sleep`` frees it)."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.rollouts.inprocess.decoder import Decoder
from agentrl.rollouts.inprocess.kv import KVCache
from agentrl.rollouts.inprocess.prefill import Prefiller
from agentrl.rollouts.inprocess.rows import RowTable
from agentrl.rollouts.inprocess.sessions import SessionCache
from agentrl.rollouts.inprocess.spec import TorchEngineSpec
from agentrl.rollouts.inprocess.weights import DecoderWeights

__all__ = ["Lanes"]


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The decode rows: their KV, their host arrays, the sessions in them, and the forward passes over them."""

    kv: KVCache
    table: RowTable
    cache: SessionCache
    decoder: Decoder
    prefiller: Prefiller

    @classmethod
    def build(cls, spec: TorchEngineSpec, weights: DecoderWeights) -> Lanes:
        """Empty rows."""
        kv = KVCache(weights.config, spec.num_rows, spec.context_tokens, weights.dtype, weights.device)
        table = RowTable(spec.num_rows, kv.capacity, kv.trash)
        decoder = Decoder(weights, kv)
        return cls(
            kv=kv,
            table=table,
            cache=SessionCache(table, kv, spec.parked_tokens),
            decoder=decoder,
            prefiller=Prefiller(decoder, kv, weights.config.num_heads, weights.device, fixed=spec.deterministic),
        )
