"""A model that sees, on a real vLLM server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentrl.engines.vllm import VLLMEngine
from agentrl.rollouts.token_consistency import assert_token_consistency
from agentrl.weight_sync import SharedMemorySender
from tests.engines.seen import asked, assert_own_logprobs
from tests.engines.sglang.models import logprobs, made
from tests.engines.vllm.conftest import specified
from tests.tiny_vision import picture, write_qwen_vl

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("qwen-vl"), context=1024, heads=2)


@pytest.fixture(scope="module")
def engine(
    python: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VLLMEngine]:
    """One server of its own, since it has another model than the others."""
    logs = tmp_path_factory.mktemp("server")
    spec, place = specified(
        {
            "model": str(folder),
            "folder": str(logs),
            "context_tokens": 1024,
            "kv_tokens": 8192,
            "python": python,
            "call_timeout_s": 300,
        }
    )
    engine = VLLMEngine(place, spec, SharedMemorySender())
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """The same model in transformers."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32
    ).eval()


async def test_logprobs_are_the_models_own(
    engine: VLLMEngine, reference: Any, folder: Path
) -> None:
    requests = [
        asked(folder, "one", "What is ", picture(84, 56), "?"),
        asked(
            folder,
            "two",
            picture(84, 56, seed=1),
            "and",
            picture(60, 130, seed=2, form="JPEG"),
        ),
        asked(folder, "none", "No image at all."),
    ]
    answers = await asyncio.gather(*map(engine.generate, requests))
    for request, answer in zip(requests, answers, strict=True):
        assert_own_logprobs(reference, folder, request, made(answer), logprobs(answer))
        assert_token_consistency(request, answer, engine.info().vocab_size)
        assert np.isfinite(logprobs(answer)).all()


async def test_what_a_server_says_of_its_weights_covers_tower_and_language_model(
    engine: VLLMEngine, folder: Path
) -> None:
    def publish(version: int, changed: str) -> None:
        with torch.no_grad():
            dict(tensors)[changed].mul_(1.1)
        engine.pause("retract")
        session = engine.begin_update(version)
        for name, tensor in tensors:
            session.put(name, tensor)
        session.commit()
        # raises where a digest did not follow what was sent
        engine.checksum()
        engine.resume()

    # by the folder's names
    tensors = [*load_file(folder / "model.safetensors").items()]
    parts = ("What is ", picture(84, 56), "?")
    seen = [
        asked(folder, str(n), *parts, max_new_tokens=1, temperature=0.0) for n in range(3)
    ]
    found = [logprobs(await engine.generate(seen[0]))]
    for version, changed in enumerate(
        ("visual.merger.ln_q.weight", "model.norm.weight"), 1
    ):
        await asyncio.to_thread(publish, version, changed)
        found.append(logprobs(await engine.generate(seen[version])))
    assert len({float(one[0]) for one in found}) == 3
    covered = {name for held in engine.state.held.told for name in held.parts}
    # what a CPU keeps in packed copies has no digest
    assert covered >= {"visual.merger.ln_q.weight", "model.norm.weight"}
    assert covered <= dict(tensors).keys()
