"""The other side: calls functions of verl in the environment that has it.

Run as ``python verl_side.py``: of each file that a line of the standard input names it reads
pickled calls by name, puts the pickled answers in its place, and says so. It knows nothing of
agentrl.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.trainer.config import AlgoConfig, KLControlConfig
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig


def config(settings: Mapping[str, Any]) -> ActorConfig:
    own = ActorConfig(
        strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **settings
    )
    own.global_batch_info.update(dp_size=1, batch_num_tokens=None, global_batch_size=None)
    return own


def policy_loss(
    mode: str,
    settings: Mapping[str, Any],
    reduction: str,
    weights: Any = None,
    **columns: Any,
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


def bypass_loss(correction: Mapping[str, Any], **given: Any) -> dict[str, np.ndarray]:
    """Of ``bypass_mode``, where π_old is the sampler."""
    settings = given.pop("settings")
    chosen = PolicyLossConfig(rollout_correction=RolloutCorrectionConfig(**correction))
    return policy_loss(
        mode="bypass_mode", settings={**settings, "policy_loss": chosen}, **given
    )


def kl(estimator: str, log_prob: np.ndarray, other: np.ndarray) -> dict[str, np.ndarray]:
    own = torch.from_numpy(log_prob).requires_grad_()
    found = core_algos.kl_penalty(own, torch.from_numpy(other), estimator)
    found.sum().backward()
    return {"value": found.detach().numpy(), "gradient": own.grad.numpy()}


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
    found, _ = function(
        token_level_rewards=torch.from_numpy(rewards).clone(),
        response_mask=torch.from_numpy(mask),
        index=index,
        config=AlgoConfig(gamma=settings.pop("gamma", 1.0)),
        **{
            name: torch.from_numpy(one) if isinstance(one, np.ndarray) else one
            for name, one in settings.items()
        },
    )
    return {"advantages": found.numpy()}


def correction(
    log_ratio: np.ndarray, mask: np.ndarray, level: str, threshold: float | str
) -> dict[str, np.ndarray]:
    weights, metrics = rollout_corr_helper.compute_rollout_correction_weights(
        torch.from_numpy(log_ratio), torch.from_numpy(mask), level, threshold
    )
    return {
        "weights": weights.numpy(),
        "ess": np.array(metrics["rollout_is_eff_sample_size"]),
    }


def rejection(
    log_ratio: np.ndarray, mask: np.ndarray, mode: str, threshold: float | str
) -> dict[str, np.ndarray]:
    kept, _ = rollout_corr_helper.compute_rollout_rejection_mask(
        torch.from_numpy(log_ratio), torch.from_numpy(mask), mode, threshold
    )
    return {"kept": kept.numpy()}


def corrected(
    log_prob: np.ndarray, rollout: np.ndarray, mask: np.ndarray, **settings: Any
) -> dict[str, np.ndarray]:
    """Weights and rejections together."""
    proto, kept, _ = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
        torch.from_numpy(log_prob),
        torch.from_numpy(rollout),
        torch.from_numpy(mask),
        **settings,
    )
    assert proto is not None
    return {"weights": proto.batch["rollout_is_weights"].numpy(), "kept": kept.numpy()}


def reward_less_kl(coef: float, **columns: np.ndarray) -> dict[str, np.ndarray]:
    given = {name: torch.from_numpy(column) for name, column in columns.items()}
    found = core_algos.compute_rewards(
        given["rewards"], given["old"], given["reference"], coef
    )
    return {"rewards": found.numpy()}


def adaptive_kl(
    coef: float, target: float, horizon: float, samples: int, kls: list[float]
) -> dict[str, np.ndarray]:
    """The weight after each step of ``samples`` samples."""
    controller = core_algos.AdaptiveKLController(coef, target, horizon)
    found = []
    for one in kls:
        controller.update(one, samples)
        found.append(controller.value)
    return {"coef": np.array(found)}


def resampled(rewards: np.ndarray, method: str) -> dict[str, np.ndarray]:
    """Rewards of a batch after PF-PPO's resampling."""
    data = DataProto.from_dict(
        tensors={"token_level_scores": torch.from_numpy(rewards)[:, None]}
    )
    found = core_algos.compute_pf_ppo_reweight_data(data, method)
    return {"rewards": found.batch["token_level_scores"][:, 0].numpy()}


def public(section: Any) -> list[str]:
    return sorted(one.name for one in fields(section) if not one.name.startswith("_"))


def names() -> dict[str, Any]:
    """What verl has under a name."""
    return {
        "estimators": sorted(core_algos.ADV_ESTIMATOR_REGISTRY),
        "losses": sorted(core_algos.POLICY_LOSS_REGISTRY),
        "rejections": sorted(rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS),
        "correction": public(RolloutCorrectionConfig),
        "kl_ctrl": public(KLControlConfig),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        place = Path(line.strip())
        calls = pickle.loads(place.read_bytes())
        place.write_bytes(pickle.dumps([globals()[name](**given) for name, given in calls]))
        sys.stdout.write(f"answered {place}\n")
        sys.stdout.flush()
