"""The other side: calls functions of verl in the environment that has it.

Run as ``python verl_side.py``: of each file that a line of the standard input names it reads
pickled calls by name, puts the pickled answers in its place, and says so. It knows nothing of
agentrl.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.config.algorithm import KLControlConfig, RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig


def names() -> list[str]:
    return [
        *core_algos.ADV_ESTIMATOR_REGISTRY,
        *core_algos.POLICY_LOSS_REGISTRY,
        *(field.name for field in dataclasses.fields(RolloutCorrectionConfig)),
        *(field.name for field in dataclasses.fields(KLControlConfig)),
    ]


def config(settings: Mapping[str, Any]) -> ActorConfig:
    own = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **settings)
    own.global_batch_info.update(dp_size=1, batch_num_tokens=None, global_batch_size=None)
    return own


def policy_loss(
    mode: str, settings: Mapping[str, Any], reduction: str, weights: Any = None, **columns: Any
) -> dict[str, np.ndarray]:
    given = {name: torch.from_numpy(column) for name, column in columns.items()}
    log_prob = given["log_prob"].requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(mode)(
        old_log_prob=given["old_log_prob"],
        log_prob=log_prob,
        advantages=given["advantages"],
        response_mask=given["mask"],
        loss_agg_mode=reduction,
        config=config(settings),
        rollout_is_weights=None if weights is None else torch.from_numpy(weights),
    )
    loss.backward()
    return {"loss": loss.detach().numpy(), "gradient": log_prob.grad.numpy()}


def kl(estimator: str, log_prob: np.ndarray, other: np.ndarray) -> dict[str, np.ndarray]:
    own = torch.from_numpy(log_prob).requires_grad_()
    found = core_algos.kl_penalty(own, torch.from_numpy(other), estimator)
    found.sum().backward()
    return {"value": found.detach().numpy(), "gradient": own.grad.numpy()}


def adaptive_kl(coef: float, target: float, horizon: int, found: list[float]) -> dict[str, Any]:
    controller = core_algos.AdaptiveKLController(coef, target, horizon)
    coefs = []
    for value in found:
        controller.update(value, 1)
        coefs.append(controller.value)
    return {"coefs": coefs}


def value_loss(clip: float, **columns: Any) -> dict[str, np.ndarray]:
    given = {name: torch.from_numpy(column) for name, column in columns.items()}
    predicted = given["values"].requires_grad_()
    loss, _ = core_algos.compute_value_loss(
        predicted, given["returns"], given["old_values"], given["mask"], clip
    )
    loss.backward()
    return {"loss": loss.detach().numpy(), "gradient": predicted.grad.numpy()}


def gae(discount: float, lam: float, **columns: Any) -> dict[str, np.ndarray]:
    given = {name: torch.from_numpy(column) for name, column in columns.items()}
    advantages, returns = core_algos.compute_gae_advantage_return(
        given["rewards"], given["values"], given["mask"], discount, lam
    )
    return {"advantages": advantages.numpy(), "returns": returns.numpy()}


def estimator(
    name: str, rewards: np.ndarray, mask: np.ndarray, index: np.ndarray, **settings: Any
) -> dict[str, np.ndarray]:
    function = core_algos.get_adv_estimator_fn(name)
    if name == "remax":
        settings["reward_baselines"] = torch.from_numpy(settings.pop("baselines"))
    else:
        settings["index"] = index
    found, _ = function(
        token_level_rewards=torch.from_numpy(rewards).clone(),
        response_mask=torch.from_numpy(mask),
        config=AlgoConfig(gamma=settings.pop("gamma", 1.0)),
        **settings,
    )
    return {"advantages": found.numpy()}


def correction(
    log_ratio: np.ndarray, mask: np.ndarray, level: str, threshold: float | str
) -> dict[str, np.ndarray]:
    weights, metrics = rollout_corr_helper.compute_rollout_correction_weights(
        torch.from_numpy(log_ratio), torch.from_numpy(mask), level, threshold
    )
    return {"weights": weights.numpy(), "ess": np.array(metrics["rollout_is_eff_sample_size"])}


def rejection(
    log_ratio: np.ndarray, mask: np.ndarray, mode: str, threshold: float | str
) -> dict[str, np.ndarray]:
    kept, _ = rollout_corr_helper.compute_rollout_rejection_mask(
        torch.from_numpy(log_ratio), torch.from_numpy(mask), mode, threshold
    )
    return {"kept": kept.numpy()}


if __name__ == "__main__":
    for line in sys.stdin:
        place = Path(line.strip())
        calls = pickle.loads(place.read_bytes())
        place.write_bytes(pickle.dumps([globals()[name](**given) for name, given in calls]))
        sys.stdout.write(f"answered {place}\n")
        sys.stdout.flush()
