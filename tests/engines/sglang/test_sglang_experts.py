"""A mixture of experts that was trained is served by a real SGLang server with the logprobs of the
trainer and of transformers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.engines.sglang import SGLangEngine
from agentrl.training import leave
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import SegmentKind
from agentrl.weight_sync import HttpSender, publish_in_process
from tests.engines.sglang.conftest import running_server
from tests.engines.sglang.digests import require_sent
from tests.engines.sglang.models import DTYPE, NEAR, HuggingFace, logprobs, made, request
from tests.run.tiny_task import demonstrations
from tests.training.harness import make_actor, make_batch, own_logprobs, update

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

PROMPT = [5, 17, 200, 33, 8]


async def test_a_trained_mixture_is_served_with_the_trainers_logprobs(
    build: Callable[..., SGLangEngine], python: str, tmp_path: Path
) -> None:
    folder = tmp_path / "experts"
    build_tiny_model(
        folder,
        demonstrations(0),
        num_demonstrations=40,
        vocab_size=300,
        hidden=64,
        layers=2,
        ff=128,
        experts=4,
    )
    # whose output layer SGLang does not tie
    config = AutoConfig.from_pretrained(folder, tie_word_embeddings=False)
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    actor = make_actor(str(folder), "sft", dtype=DTYPE)
    with running_server(python, folder, tmp_path / "server") as url:
        engine = build(url, sender=HttpSender, model=str(folder))
        # The digests of the second publish are held against those of the first.
        for version in (1, 2):
            update(actor, make_batch(kind=SegmentKind.TARGET, seed=version))
            await asyncio.to_thread(publish_in_process, actor, engine, version)
            require_sent(engine, actor.weights(DTYPE))
            completion = await engine.generate(
                request(f"v{version}", PROMPT, max_new_tokens=16)
            )
    served = logprobs(completion)
    own = own_logprobs(actor, [*PROMPT, *made(completion)])[len(PROMPT) - 1 :]
    np.testing.assert_allclose(served, own, atol=NEAR, rtol=0)
    actor.export(tmp_path / "exported")
    theirs = HuggingFace(tmp_path / "exported").logprobs(PROMPT, made(completion))
    np.testing.assert_allclose(served, theirs, atol=NEAR, rtol=0)
    leave()
