"""Everything that holds or points into KV memory, made and dropped as one (``sleep`` frees it)."""

from __future__ import annotations

from agentrl.engines.torch.model.served_model import ServedModel
from agentrl.engines.torch.prefill import Prefiller
from agentrl.engines.torch.rows import RowTable
from agentrl.engines.torch.sessions import SessionCache
from agentrl.engines.torch.torch_spec import RowPlan


class KVState:
    """The decode rows, empty at first: their KV, their host arrays, the sessions in them, and the
    forward passes over them.
    """

    def __init__(self, plan: RowPlan, model: ServedModel) -> None:
        self.kv, self.decoder = model.empty_rows(plan.num_rows, plan.context_tokens)
        self.table = RowTable(plan.num_rows, self.kv.capacity, self.kv.trash)
        self.cache = SessionCache(self.table, self.kv, plan.parked_tokens)
        self.prefiller = Prefiller(
            self.decoder, self.kv, model.num_heads, model.device, fixed=plan.deterministic
        )
