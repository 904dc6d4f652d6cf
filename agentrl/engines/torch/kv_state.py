"""Everything that holds or points into KV memory, made and dropped as one (``sleep`` frees it)."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.engines.torch.kv_cache import KVCache
from agentrl.engines.torch.model.interface import Forward, ServedModel
from agentrl.engines.torch.prefill import Prefiller
from agentrl.engines.torch.rows import RowTable
from agentrl.engines.torch.sessions import SessionCache
from agentrl.engines.torch.torch_spec import RowPlan


@dataclass(frozen=True, slots=True, eq=False)
class KVState:
    """The decode rows: their KV, their host arrays, the sessions in them, and the forward passes
    over them.
    """

    kv: KVCache
    table: RowTable
    cache: SessionCache
    decoder: Forward
    prefiller: Prefiller

    @classmethod
    def build(cls, plan: RowPlan, weights: ServedModel) -> KVState:
        """Empty rows."""
        kv, decoder = weights.empty_rows(plan.num_rows, plan.context_tokens)
        table = RowTable(plan.num_rows, kv.capacity, kv.trash)
        return cls(
            kv=kv,
            table=table,
            cache=SessionCache(table, kv, plan.parked_tokens),
            decoder=decoder,
            prefiller=Prefiller(
                decoder, kv, weights.num_heads, weights.device, fixed=plan.deterministic
            ),
        )
