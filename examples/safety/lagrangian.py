"""PPO-Lagrangian, as Safe-RLHF trains (arXiv:2310.12773): a cost model and its critic as roles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentrl.algorithms import Advantages, AlgorithmSpec, TokenCredit, make_algorithm
from agentrl.training import DistSpec, RewardModel, RewardModelSpec
from agentrl.training.roles.advantages import last_trained
from agentrl.types import BatchShard, Collect, Dispatch, Stats, register


@dataclass(frozen=True, slots=True)
class CostModelSpec(RewardModelSpec):
    def build(self, place: DistSpec) -> CostModel:
        return CostModel(self, place)


class CostModel(RewardModel):
    """A frozen model of preferences: how likely people call an answer the more harmful one."""

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def costs(self, shard: BatchShard) -> dict[str, Any]:
        """Each trajectory's cost, on its last trained token."""
        batch = shard.batch
        sample = np.repeat(np.arange(batch.num_samples), batch.lengths)
        last = last_trained(batch)
        column = np.zeros(batch.num_tokens, np.float32)
        column[last] = 1 / (1 + np.exp(-self.scores(shard)[sample[last]]))
        return {"costs": column}


def ppo_lagrangian(limit: float, rate: float = 1.0, **settings: Any) -> AlgorithmSpec:
    """PPO whose mean cost is held below ``limit`` by a multiplier; ``settings`` are PPO's."""
    ppo = make_algorithm("ppo", settings)

    def advantages(credit: TokenCredit) -> Advantages:
        own: dict[str, Any] = {
            name: credit.columns[f"cost/{name}"] for name in ("values", "final_values")
        }
        gain = ppo.advantages(credit)
        cost = ppo.advantages(
            replace(credit, reward=credit.columns["cost_model/costs"], **own)
        )
        multiplier = math.exp(credit.state["log_multiplier"])
        assert cost.returns is not None, "PPO has a critic"
        mixed = (gain.advantages - multiplier * cost.advantages) / (1 + multiplier)
        return Advantages(mixed, gain.returns, {"cost/returns": cost.returns})

    def next_state(state: Mapping[str, float], stats: Stats) -> dict[str, float]:
        # what the critic of costs learns is the mean cost, weighed by tokens
        excess = stats["cost/return"].mean - limit
        return {"log_multiplier": state["log_multiplier"] + rate * excess}

    start = {"log_multiplier": 0.0}
    return replace(ppo, advantages=advantages, next_state=next_state, initial_state=start)
