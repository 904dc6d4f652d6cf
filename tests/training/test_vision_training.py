"""Vision-language models are trained on the numbers of transformers' own forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.training.vision.vision_tower import VisionMode
from tests.tiny_vision import FAMILIES, write_qwen_vl
from tests.training.vision_batch import (
    Case,
    compare,
    make_actor,
    make_case,
    own_gradients,
    reference,
)

ALL = range(6)


@pytest.fixture(scope="module", params=FAMILIES)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("vl"), family=request.param)


@pytest.fixture(scope="module")
def run(model: Path) -> Path:
    return model / "run"


@pytest.fixture(scope="module")
def case(model: Path, run: Path) -> Case:
    return make_case(model, run)


@pytest.fixture(scope="module")
def expected(model: Path, case: Case) -> Any:
    return reference(model, case)


def without_tower(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one for name, one in gradients.items() if ".visual." not in name}


@pytest.mark.parametrize(
    ("vision", "spec"),
    [
        ("frozen", {"backend": "plain"}),
        ("trained", {"backend": "plain"}),
        ("frozen", {}),
        ("trained", {}),
        ("trained", {"backend": "plain", "gradient_checkpointing": True}),
    ],
)
def test_gradients_are_the_familys(
    vision: VisionMode, spec: dict[str, Any], model: Path, run: Path, case: Case, expected: Any
) -> None:
    logprobs, gradients = expected
    assert any(".visual." in name for name in gradients)
    actor = make_actor(model, run, vision=vision, **spec)
    for parts in ((ALL,), ((0, 1, 2), (3, 4), (5,))):
        shard = case.shard(ALL, *parts)
        found = actor.logprobs(shard)["old_logprobs"]
        assert np.abs(found - logprobs).max() < 1e-5
        compare(
            own_gradients(actor, case, shard),
            gradients if vision == "trained" else without_tower(gradients),
        )
        actor.backend.step(0.0, None)
    rows = list(actor.packed(case.shard(ALL, ALL)))
    # both images of the first group and the first one of the second are there once
    assert len(rows[0].media) == 4
    assert actor.backend.info.shares_prefixes
