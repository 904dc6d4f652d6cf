"""A model that sees, on a real vLLM server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engines.vllm import VLLMEngine
from agentrl.rollouts.token_consistency import assert_token_consistency
from tests.engines.seen import asked, assert_own_logprobs
from tests.engines.sglang.models import logprobs, made
from tests.engines.vllm.conftest import specified
from tests.tiny_vision import picture, write_qwen_vl

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


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
    engine = VLLMEngine(place, spec)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """The same model in transformers."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


async def test_logprobs_are_the_models_own(
    engine: VLLMEngine, reference: Any, folder: Path
) -> None:
    requests = [
        asked(folder, "one", "What is ", picture(84, 56), "?"),
        asked(folder, "two", picture(84, 56, seed=1), "and", picture(60, 130, seed=2, form="JPEG")),
        asked(folder, "none", "No image at all."),
    ]
    answers = await asyncio.gather(*map(engine.generate, requests))
    for request, answer in zip(requests, answers, strict=True):
        assert_own_logprobs(reference, folder, request, made(answer), logprobs(answer))
        assert_token_consistency(request, answer, engine.info().vocab_size)
        assert np.isfinite(logprobs(answer)).all()
