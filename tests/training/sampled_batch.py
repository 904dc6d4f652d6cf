"""A batch of what TorchEngine sampled, with the sampler's logprobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from agentrl.types import Batch, SegmentKind
from tests.engines.tiny import random_ids, request, sampled
from tests.training.harness import make_batch

Episode = tuple[np.ndarray, np.ndarray]


async def play(engine: TorchEngine, group: int, rollout: int, temperature: float) -> Episode:
    """Ids and logprobs of an episode of three turns, whose prompt its group shares; a logprob is
    NaN where nothing was sampled."""
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
        new, drawn = sampled(await engine.generate(asked))
        said = random_ids(100 * rollout + turn, 3 + 4 * rollout)
        nothing = np.full(said.size, np.nan, np.float32)
        ids = np.concatenate([ids, new, said])
        logprobs = np.concatenate([logprobs, known, drawn, nothing])
    return ids, logprobs


async def play_all(engine: TorchEngine, temperature: float) -> list[Episode]:
    return await asyncio.gather(
        *(play(engine, group, rollout, temperature) for group in range(3) for rollout in range(4))
    )


def sampled_batch(folder: Path, temperature: float = 1.0, **place: Any) -> Batch:
    """What an engine of few rows samples: three groups of four."""
    settings = {"context_tokens": 200, "max_running": 5, "deterministic": True} | place
    engine = TorchEngine(EnginePlace(model=str(folder), **settings))
    try:
        episodes = asyncio.run(play_all(engine, temperature))
    finally:
        engine.close()
    batch = make_batch([ids.size for ids, _ in episodes], temperature=temperature)
    logprobs = np.concatenate([found for _, found in episodes])
    is_sampled = np.isfinite(logprobs)
    return replace(
        batch,
        token_ids=np.concatenate([ids for ids, _ in episodes]),
        kind=np.where(is_sampled, SegmentKind.POLICY, SegmentKind.PROMPT).astype(np.int8),
        loss_mask=is_sampled.astype(np.float32),
        rollout_logprobs=np.nan_to_num(logprobs),
        policy_versions=np.where(is_sampled, 0, -1).astype(np.int32),
    )
