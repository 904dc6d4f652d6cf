"""A mixture of experts that was trained is served by a real SGLang server with the trainer's
logprobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.engines.sglang import SGLangEngine
from agentrl.training import leave
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import SegmentKind
from agentrl.weight_sync import HttpSender
from tests.engines.sglang.conftest import running_server
from tests.engines.sglang.models import NEAR, logprobs, made, request
from tests.run.tiny_task import demonstrations
from tests.training.harness import make_actor, make_batch, update

pytestmark = pytest.mark.sglang

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
    actor = make_actor(str(folder), "sft")
    with running_server(python, folder, tmp_path / "server") as url:
        update(actor, make_batch(kind=SegmentKind.TARGET))
        engine = build(url, sender=HttpSender, model=str(folder))
        engine.pause("retract")
        session = engine.begin_update(1)
        for name, weight in actor.weights():
            session.put(name, weight)
        session.commit()
        engine.checksum()
        engine.resume()
        completion = await engine.generate(request("a", PROMPT, max_new_tokens=16))
    row = torch.tensor([*PROMPT, *made(completion)])
    places = torch.arange(row.numel())
    model = actor.backend.model
    with torch.no_grad():
        hidden = model.hidden(row, places[None], [Span(ROOT, 0, row.numel())], places)
        own = model.answers(hidden).log_softmax(-1)
    expected = own[len(PROMPT) - 1 : -1].gather(1, row[len(PROMPT) :, None])[:, 0].numpy()
    np.testing.assert_allclose(logprobs(completion), expected, atol=NEAR)
    leave()
