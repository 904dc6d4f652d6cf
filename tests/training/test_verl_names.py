"""What an update gives under verl's names, against verl's definitions computed here token by
token.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.metrics import with_verl_names
from agentrl.types import Batch
from tests.training.harness import make_actor, make_batch, prepared, update

LOW, HIGH, DUAL, KL_COEF, CAP = 0.2, 0.28, 1.5, 0.2, 2.0


def batch_of(actor: Any) -> Batch:
    random = np.random.default_rng(5)
    batch = prepared(actor, make_batch(temperature=0.9))
    assert batch.old_logprobs is not None

    def near(spread: float) -> np.ndarray:
        moved = batch.old_logprobs + random.normal(0, spread, batch.num_tokens)
        return (moved * batch.loss_mask).astype(np.float32)

    return replace(
        batch, old_logprobs=near(0.5), rollout_logprobs=near(0.3), ref_logprobs=near(2.0)
    )


def tokens_of(model_path: str, batch: Batch) -> list[list[dict[str, float]]]:
    """Each sample's trained tokens, with transformers' own logprobs and entropies."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    samples = []
    for sample, (first, end) in enumerate(pairwise(batch.cu_seqlens)):
        ids = torch.from_numpy(batch.token_ids[first:end].astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None]).logits[0].double() / float(batch.temperature[sample])
        logprobs = logits.log_softmax(-1)
        samples.append(
            [
                {
                    "now": float(logprobs[at - first - 1, ids[at - first]]),
                    "entropy": float(
                        -(logprobs[at - first - 1].exp() * logprobs[at - first - 1]).sum()
                    ),
                    "old": float(batch.old_logprobs[at]),  # type: ignore[index]
                    "rollout": float(batch.rollout_logprobs[at]),
                    "ref": float(batch.ref_logprobs[at]),  # type: ignore[index]
                    "advantage": float(batch.advantages[at]),  # type: ignore[index]
                }
                for at in range(first, end)
                if batch.loss_mask[at]
            ]
        )
    return samples


def held(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))


def verls(samples: list[list[dict[str, float]]], mode: str) -> dict[str, float]:
    """verl's numbers of a mini-batch that is one micro-batch, by their definitions."""

    def mean(values: list[list[float]]) -> float:
        flat = [value for sample in values for value in sample]
        return sum(flat) / len(flat)

    def aggregate(values: list[list[float]]) -> float:
        if mode == "token-mean":
            return mean(values)
        # seq-mean-token-mean
        return sum(sum(sample) / len(sample) for sample in values) / len(values)

    losses, clipped, dual, kl_old, kl_ref = ([[] for _ in samples] for _ in range(5))
    for row, sample in enumerate(samples):
        for token in sample:
            log_ratio = held(token["now"] - token["old"], 20.0)
            ratio, advantage = math.exp(log_ratio), token["advantage"]
            plain = -advantage * ratio
            bounded = -advantage * max(1 - LOW, min(1 + HIGH, ratio))
            loss, most = max(plain, bounded), -advantage * DUAL
            clipped[row].append(float(bounded > plain))
            dual[row].append(float(advantage < 0 and loss > most))
            kl_old[row].append(-log_ratio)
            loss = min(loss, most) if advantage < 0 else loss
            losses[row].append(loss * min(math.exp(token["old"] - token["rollout"]), CAP))
            away = held(token["ref"] - token["now"], 20.0)
            kl_ref[row].append(held(math.exp(away) - away - 1.0, 10.0))
    return {
        "actor/pg_loss": aggregate(losses),
        "actor/kl_loss": aggregate(kl_ref),
        "actor/pg_clipfrac": mean(clipped),
        "actor/pg_clipfrac_lower": mean(dual),
        "actor/ppo_kl": mean(kl_old),
        "actor/entropy": mean(
            [[token["entropy"] for token in sample] for sample in samples]
        ),
    }


@pytest.mark.parametrize(
    ("reduction", "mode"),
    [("token_mean", "token-mean"), ("trajectory_mean", "seq-mean-token-mean")],
)
def test_an_updates_numbers_are_verls(model_path: str, reduction: str, mode: str) -> None:
    settings = {
        **{"clip_low": LOW, "clip_high": HIGH, "clip_dual": DUAL, "kl_coef": KL_COEF},
        **{"rollout_correction": {"level": "token", "cap": CAP}, "reduction": reduction},
    }
    actor = make_actor(model_path, settings=settings)
    batch = batch_of(actor)
    wanted = verls(tokens_of(model_path, batch), mode)

    named = with_verl_names(update(actor, batch).means())

    # zeros would prove nothing
    assert all(abs(number) > 0.01 for number in wanted.values())
    assert {name: named[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)
