"""TorchEngine and a real SGLang server mean the same by a logprob."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentrl.engines import EnginePlace
from agentrl.engines.sglang import SGLangEngine
from agentrl.engines.torch import TorchEngineSpec
from agentrl.weight_sync import HttpSender
from tests.engines.sglang.models import (
    CONTEXT,
    HuggingFace,
    logprobs,
    made,
    publish,
    request,
)

pytestmark = pytest.mark.sglang

PROMPT = [5, 17, 200, 33, 8]


@pytest.mark.parametrize(
    "sampling",
    # not top_k=1 at another temperature: the server takes that for greedy decoding, with logprobs
    # at temperature 1
    [
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_p": 1e-6},
        {"temperature": 0.7, "top_p": 1e-6},
    ],
    ids=[
        "greedy",
        "one token left by top-k",
        "one token left by top-p",
        "one token left by top-p at 0.7",
    ],
)
async def test_tokens_and_logprobs_are_the_same(
    sampling: dict[str, float],
    build: Callable[..., SGLangEngine],
    server: str,
    model: Path,
    reference: HuggingFace,
) -> None:
    served = build(server, sender=HttpSender)
    publish(served, reference, 1)
    own = TorchEngineSpec().build(
        EnginePlace(str(model), context_tokens=CONTEXT, max_running=1)
    )
    try:
        asked = [
            request(name, PROMPT, max_new_tokens=12, **sampling)
            for name in ("there", "here")
        ]
        there, here = await served.generate(asked[0]), await own.generate(asked[1])
    finally:
        own.close()
    assert made(there) == made(here)
    np.testing.assert_allclose(logprobs(there), logprobs(here), atol=1e-4)
