"""The truth that servers are compared with, and requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentrl.engines import ServedDtype
from agentrl.engines.sglang import SGLangEngine
from agentrl.types import (
    Completion,
    GenerateRequest,
    SamplingParams,
    concat_ids,
    frozen_ints,
)
from tests.engines.sglang.digests import ON_GPU, require_sent
from tests.kit.waiting import until_async

CONTEXT = 512

# SGLang's kernels on a GPU have no float32.
DTYPE: ServedDtype = "bfloat16" if ON_GPU else "float32"

NEAR: float = {"float32": 1e-4, "bfloat16": 0.1}[DTYPE]
"""Largest difference of a token's logprob, in nats, from transformers in float32."""


class HuggingFace:
    """A model in transformers, fp32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def scale(self, factor: float) -> None:
        """Other weights, each of them."""
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.mul_(factor)

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.module(torch.tensor([list(ids)])).logits[0]
        return logits

    def logprobs(
        self, prompt: Sequence[int], made: Sequence[int], temperature: float = 1.0
    ) -> np.ndarray:
        """log p of each token of ``made``."""
        ids = [*prompt, *made]
        table = (self.logits(ids) / temperature).log_softmax(-1)
        return np.array(
            [float(table[at - 1, ids[at]]) for at in range(len(prompt), len(ids))]
        )

    def assert_alternatives(
        self,
        prompt: Sequence[int],
        completion: Completion,
        count: int,
        temperature: float = 1.0,
    ) -> None:
        """Each sampled token has its ``count`` likeliest ones, by falling logprob."""
        table = (self.logits([*prompt, *made(completion)]) / temperature).log_softmax(-1)
        place = len(prompt) - 1
        for segment in completion.segments:
            assert segment.alternatives is not None
            ids, given = segment.alternatives
            assert ids.shape == given.shape == (len(segment), count)
            for likely, logprobs in zip(ids.tolist(), given, strict=True):
                wanted = table[place].topk(count).values.numpy()
                np.testing.assert_allclose(logprobs, wanted, atol=NEAR, rtol=1e-3)
                np.testing.assert_allclose(
                    logprobs, table[place, likely].numpy(), atol=NEAR, rtol=1e-3
                )
                place += 1
        assert place == len(prompt) - 1 + len(made(completion))

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(prompt) :]


def request(
    name: str, prompt: Sequence[int], *, session: str = "", **settings: Any
) -> GenerateRequest:
    """Fields of the request go to it, everything else is sampling."""
    names = ("deadline_s", "min_version", "num_alternatives", "on_tokens")
    own = {key: settings.pop(key) for key in names if key in settings}
    sampling = SamplingParams(**{"max_new_tokens": 24} | settings)
    return GenerateRequest(
        name, session or name, frozen_ints(prompt), sampling, seed=0, **own
    )


def made(completion: Completion) -> list[int]:
    return [int(token) for token in concat_ids(completion.segments)]


def logprobs(completion: Completion) -> np.ndarray:
    return np.concatenate(
        [s.logprobs for s in completion.segments if s.logprobs is not None]
    )


def versions(completion: Completion) -> list[int | None]:
    return [segment.policy_version for segment in completion.segments]


def publish(engine: SGLangEngine, reference: HuggingFace, version: int) -> None:
    """Every weight of the reference, as version; each server says that it holds just these."""
    engine.pause("retract")
    session = engine.begin_update(version)
    for name, parameter in reference.module.named_parameters():
        session.put(name, parameter)
    session.commit()
    engine.checksum()
    require_sent(engine, reference.module.named_parameters())
    engine.resume()


async def in_flight(
    engine: SGLangEngine, *requests: GenerateRequest
) -> list[asyncio.Task[Completion]]:
    """Requests that the servers have begun; of many the first may have ended meanwhile."""
    tasks = [asyncio.create_task(engine.generate(one)) for one in requests]
    await until_async(
        lambda: engine.health().running + sum(one.done() for one in tasks) >= len(requests)
    )
    return tasks
