"""LoRA against peft 0.21: loss and gradients of one adapter, and adapters that travel both ways.

In float64 to 1e-9.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.algorithms import make_algorithm
from agentrl.training import DistSpec, LearningRole, RewardLearner, RewardLearnerSpec, join
from agentrl.training.fsdp.checkpoint_export import export_checkpoint
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.peft_folder import as_peft, peft_names
from agentrl.types import SegmentKind
from tests.kit.waiting import DEADLINE_S
from tests.oracles.conftest import HERE
from tests.tiny_models import write_family
from tests.training.harness import (
    VOCAB,
    make_actor,
    make_batch,
    update,
    update_shards,
    write_model,
)

pytestmark = pytest.mark.slow

CLOSE = 1e-9
BATCH = make_batch((13, 9, 21, 6), kind=SegmentKind.TARGET)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "all linear layers": ("qwen3", {"target_modules": "all-linear"}),
    "biases": ("qwen2", {"target_modules": ALL}),
    "some": ("qwen3", {"target_modules": ["q_proj", "layers.1.mlp.down_proj"], "r": 3}),
    "a pattern": ("qwen3", {"target_modules": r".*layers\.0\..*v_proj"}),
    "embedding": ("untied", {"target_modules": ["embed_tokens", "v_proj"]}),
    "experts": (
        "mixture",
        {"target_modules": ["q_proj"], "target_parameters": ["gate_up_proj", "down_proj"]},
    ),
    "experts of one kind": (
        "mixture",
        {"target_modules": [], "target_parameters": ["layers.1.mlp.experts.down_proj"]},
    ),
    "reward model": ("qwen3", {"target_modules": ALL, "task_type": "SEQ_CLS"}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "qwen3")
    write_model(folder / "untied", tie_word_embeddings=False)
    write_family(folder / "qwen2", "qwen2", vocab_size=VOCAB)
    write_family(folder / "mixture", "qwen3_moe", vocab_size=VOCAB)
    return folder


@pytest.fixture(scope="module")
def exported(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of ours after two steps, and what it is merged into."""
    folder = tmp_path_factory.mktemp("exported")
    actor = make_actor(str(models / "qwen3"), "sft", lora=LoraSpec(rank=4), backend="plain")
    for _ in range(2):
        update(actor, BATCH)
    actor.save(folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", folder / "adapter")
    export_checkpoint(folder / "checkpoint", folder / "merged", merges=True)
    return folder


@pytest.fixture(scope="module")
def theirs(
    models: Path,
    exported: Path,
    peft_packages: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Mapping[str, Any]]:
    """peft's adapters, and by case what it computes with them."""
    folder = tmp_path_factory.mktemp("peft")
    cuts = list(pairwise(BATCH.cu_seqlens))
    samples = [BATCH.token_ids[a:b].tolist() for a, b in cuts]
    masks = [BATCH.loss_mask[a:b].tolist() for a, b in cuts]
    jobs = []
    for name, (model, config) in CASES.items():
        config = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"} | config
        given = {
            "base": str(models / model),
            "adapter": str(folder / name),
            "samples": samples,
        }
        more = {"masks": masks, "config": config, "dtype": torch.float64}
        jobs.append(("gradients", given | more))
    given = {"base": str(models / "qwen3"), "adapter": str(exported / "adapter")}
    jobs.append(("logits", given | {"ids": samples[0]}))
    (folder / "job").write_bytes(pickle.dumps(jobs))
    subprocess.run(
        [sys.executable, "-P", HERE / "peft_side.py", folder / "job", folder / "answer"],
        env={**os.environ, "PYTHONPATH": f"{peft_packages}{os.pathsep}{HERE.parents[1]}"},
        check=True,
        timeout=DEADLINE_S,
    )
    answers = torch.load(folder / "answer", weights_only=False)
    return folder, dict(zip([*CASES, "ours"], answers, strict=True))


@pytest.mark.parametrize("backend", ["plain", "fsdp2"])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_of_one_adapter_are_those_of_peft(
    models: Path, theirs: tuple[Path, Mapping[str, Any]], name: str, backend: str
) -> None:
    folder, answers = theirs
    path, spec = str(models / CASES[name][0]), LoraSpec(path=str(folder / name))
    shard = update_shards(make_actor(path, "sft", backend="plain"), BATCH, 64, 1)[0]
    join(DistSpec())
    role: LearningRole
    if name == "reward model":
        algorithm = make_algorithm("reward_model")
        own = RewardLearnerSpec(
            path, algorithm, dtype="float64", backend=backend, lora=spec
        )
        role = RewardLearner(own, DistSpec())
    else:
        role = make_actor(path, "sft", dtype="float64", backend=backend, lora=spec)
    totals = []

    def loss(packed: Any, answer: Any, _stats: Any) -> torch.Tensor:
        values = answer[0] if isinstance(answer, tuple) else answer
        totals.append(float(values.detach().sum()))
        return values.sum() if packed.rows.size else values.sum() * 0.0

    role.backend.run(role.packed(shard), loss)
    assert sum(totals) == pytest.approx(answers[name]["loss"], rel=CLOSE)
    found = {one: own for one, own in role.backend.state().items() if own.requires_grad}
    record = role.backend.model.lora.record
    named = {f"hf.{own}": peft for own, peft in peft_names(record).items()}
    assert {named[one] for one in found} == answers[name]["gradients"].keys()
    for one, parameter in found.items():
        gradient = parameter.grad
        assert gradient is not None, one
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        expected = answers[name]["gradients"][named[one]]
        error = float((as_peft(whole, one) - expected).abs().max())
        assert error <= CLOSE * max(1.0, float(expected.abs().max())), one
        assert expected.abs().max() > 1e-3, f"{one} has a gradient to compare"


def test_peft_reads_what_is_exported_and_answers_as_the_merged_model(
    exported: Path, theirs: tuple[Path, Mapping[str, Any]]
) -> None:
    found = theirs[1]["ours"]
    model = AutoModelForCausalLM.from_pretrained(exported / "merged", dtype=torch.float32)
    ids = BATCH.token_ids[: BATCH.cu_seqlens[1]].astype(np.int64)
    with torch.no_grad():
        merged = model(input_ids=torch.from_numpy(ids)[None]).logits
    torch.testing.assert_close(found["logits"], merged, rtol=1e-4, atol=1e-5)
    assert found["said"] == []
