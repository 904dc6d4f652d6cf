"""The other side: trainers of TRL that are fed with completions, logprobs and rewards.

What a model, a reward function and an engine would say is given; all that TRL computes of it is its
own, in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

F64 = npt.NDArray[np.float64]
WORDS = {"<pad>": 0, "<eos>": 1, "a": 2}


@dataclass
class Fed:
    """Columns of ``[B, L]`` and rewards of ``[B]``; groups are neighbours of equal size."""

    log_prob: Tensor
    old_log_prob: Tensor
    mask: F64
    rewards: F64
    ref_log_prob: Tensor | None = None
    sampler: F64 | None = None


@dataclass(frozen=True)
class Answer:
    """What a trainer computed: ``[B]`` advantages, the loss, and its ``[B, L]`` gradient."""

    advantages: F64
    loss: float
    gradient: F64
    batch: Mapping[str, Any]


class _Feeding:
    """Answers in the place of model, engine and reward function."""

    fed: Fed

    def _calculate_rewards(self, *_: Any) -> Tensor:
        return torch.from_numpy(self.fed.rewards)[:, None]

    def _get_per_token_logps_and_entropies(
        self, model: Any, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor, None]:
        if model is self.ref_model:  # type: ignore[attr-defined]
            assert self.fed.ref_log_prob is not None
            found = self.fed.ref_log_prob
        else:
            found = self.fed.log_prob if torch.is_grad_enabled() else self.fed.old_log_prob
        return found, torch.zeros_like(found).detach(), None


class _FedGRPO(_Feeding, GRPOTrainer):  # type: ignore[misc]
    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        number, width = self.fed.mask.shape
        sampler = None if self.fed.sampler is None else self.fed.sampler.tolist()
        mask = self.fed.mask.astype(np.int64).tolist()
        ids = [[2] * width] * number
        return [[2]] * number, ids, mask, ["a"] * number, sampler, {}, None, None


class _FedRLOO(_Feeding, RLOOTrainer):  # type: ignore[misc]
    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        # it has no mask for tools: what is masked must be at the end
        ids = [[2] * int(row.sum()) for row in self.fed.mask]
        return [[2]] * len(ids), ids, ["a"] * len(ids)


def grpo(model_path: Path, folder: Path, fed: Fed, **settings: Any) -> Answer:
    """What ``GRPOTrainer`` with ``settings`` makes of ``fed``, as one accumulation step."""
    modes = {key: settings.pop(key) for key in list(settings) if key.startswith("vllm_")}
    trainer = _trainer(_FedGRPO, GRPOConfig, model_path, folder, fed, settings)
    if modes:  # without a server of vLLM, whose logprobs are given
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        for key, value in modes.items():
            assert hasattr(trainer, key)
            setattr(trainer, key, value)
    return _asked(trainer, fed)


def rloo(model_path: Path, folder: Path, fed: Fed, **settings: Any) -> Answer:
    """What ``RLOOTrainer`` with ``settings`` makes of ``fed``."""
    return _asked(_trainer(_FedRLOO, RLOOConfig, model_path, folder, fed, settings), fed)


def _trainer(
    kind: Any,
    config: Any,
    model_path: Path,
    folder: Path,
    fed: Fed,
    settings: dict[str, Any],
) -> Any:
    number, width = fed.mask.shape
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(WORDS, unk_token="a")),
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="a",
    )
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(model_path),
        reward_funcs=lambda **_: [0.0],
        args=config(
            output_dir=str(folder),
            per_device_train_batch_size=number,
            max_completion_length=width,
            report_to="none",
            use_cpu=True,
            bf16=False,
            num_iterations=2,  # so that π_old is a pass of its own
            **settings,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * number}),
        processing_class=tokenizer,
    )
    trainer.fed = fed
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def _asked(trainer: Any, fed: Fed) -> Answer:
    asked = [{"prompt": "a"} for _ in range(len(fed.mask))]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        batch = trainer._generate_and_score_completions(asked)
        loss = trainer._compute_loss(trainer.model, batch)
    finally:
        torch.set_default_dtype(before)
    (gradient,) = torch.autograd.grad(loss, [fed.log_prob])
    return Answer(batch["advantages"].numpy(), loss.item(), gradient.numpy(), batch)
