"""A batch of what TorchEngine sampled, with the sampler's logprobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.engines import EnginePlace, RolloutEngine
from agentrl.engines.torch import TorchEngine
from agentrl.types import Batch, SegmentKind
from agentrl.types.arrays import Experts
from tests.engines.tiny import random_ids, request, sampled
from tests.training.harness import make_batch


@dataclass(frozen=True)
class Episode:
    """What was said and sampled.

    Args:
        ids: ``[n]``.
        logprobs: ``[n]``, NaN where nothing was sampled.
        experts: ``[n, L, k]``, where the engine tells them.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    experts: Experts | None


async def play(
    engine: RolloutEngine, group: int, rollout: int, temperature: float
) -> Episode:
    """An episode of three turns, whose prompt its group shares."""
    ids, logprobs = random_ids(group, 21 + 13 * group), np.zeros(0, np.float32)
    for turn in range(3):
        known = np.full(ids.size - logprobs.size, np.nan, np.float32)
        name = f"{group}-{rollout}"
        asked = request(
            ids,
            name=f"{name}-{turn}",
            session=name,
            seed=17 * rollout + turn,
            temperature=temperature,
            max_new_tokens=5 + 3 * rollout,
        )
        answer = await engine.generate(asked)
        new, drawn = sampled(answer)
        said = random_ids(100 * rollout + turn, 3 + 4 * rollout)
        nothing = np.full(said.size, np.nan, np.float32)
        ids = np.concatenate([ids, new, said])
        logprobs = np.concatenate([logprobs, known, drawn, nothing])
    experts = answer.routed_experts
    if experts is not None:
        # nobody told those of the last tokens
        rest = (ids.size - len(experts), *experts.shape[1:])
        nobody = np.full(rest, np.iinfo(experts.dtype).max, experts.dtype)
        experts = np.concatenate([experts, nobody])
    return Episode(ids, logprobs, experts)


async def play_all(engine: RolloutEngine, temperature: float) -> list[Episode]:
    return await asyncio.gather(
        *(
            play(engine, group, rollout, temperature)
            for group in range(3)
            for rollout in range(4)
        )
    )


def sampled_batch(folder: Path, temperature: float = 1.0, **place: Any) -> Batch:
    """What a ``TorchEngine`` of few rows samples: three groups of four."""
    settings = {"context_tokens": 200, "max_running": 5, "deterministic": True} | place
    engine = TorchEngine(EnginePlace(model=str(folder), **settings))
    try:
        return batch_of(engine, temperature)
    finally:
        engine.close()


def batch_of(engine: RolloutEngine, temperature: float = 1.0) -> Batch:
    """What an engine samples: three groups of four, with the experts that it tells."""
    episodes = asyncio.run(play_all(engine, temperature))
    batch = make_batch([one.ids.size for one in episodes], temperature=temperature)
    logprobs = np.concatenate([one.logprobs for one in episodes])
    is_sampled = np.isfinite(logprobs)
    told = [one.experts for one in episodes if one.experts is not None]
    return replace(
        batch,
        token_ids=np.concatenate([one.ids for one in episodes]),
        kind=np.where(is_sampled, SegmentKind.POLICY, SegmentKind.PROMPT).astype(np.int8),
        loss_mask=is_sampled.astype(np.float32),
        rollout_logprobs=np.nan_to_num(logprobs),
        policy_versions=np.where(is_sampled, 0, -1).astype(np.int32),
        routed_experts=np.concatenate(told) if told else None,
    )
