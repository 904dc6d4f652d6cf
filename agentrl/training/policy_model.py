"""A causal language model whose forward answers with logprobs of chosen tokens, never with whole logits.

Shapes: T packed tokens, N chosen tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import nll_loss
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from agentrl.errors import ConfigError, DataError
from agentrl.training.attention import SEGMENTS, attention_arguments
from agentrl.training.packing import Family, Packed

__all__ = ["PREFIX", "DType", "PolicyModel", "load_policy", "no_progress_bars", "shard_over", "torch_dtype"]

PREFIX = "hf."
"""What the wrapper puts before every parameter's Hugging Face name."""

DType = Literal["float32", "bfloat16"]
"""Of a forward, and of published weights."""

_CHUNK_ELEMENTS = 2**25
"""Logits that exist at once: 128 MiB in float32."""


def torch_dtype(name: DType) -> torch.dtype:
    """``torch.float32`` or ``torch.bfloat16``."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


class PolicyModel(nn.Module):
    """The wrapper that FSDP shards as its root: trunk, then head and log-softmax over chunks of chosen tokens.

    Args:
        hf: the model, with attention ``attention``.
        attention: name of its attention function.
    """

    def __init__(self, hf: nn.Module, attention: str) -> None:
        super().__init__()
        self.hf = hf
        self.attention = attention

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.hf.config

    @property
    def head(self) -> nn.Module:
        """The output layer, which makes logits of hidden states."""
        head: nn.Module = self.hf.get_output_embeddings()  # type: ignore[operator]
        return head

    @property
    def shares_prompts(self) -> bool:
        """Whether a row may hold what siblings begin with once."""
        return self.attention == SEGMENTS

    def blocks(self) -> list[nn.Module]:
        """The repeated layers: what FSDP gathers one at a time."""
        names = set(self.hf._no_split_modules or ())  # type: ignore[arg-type]
        return [module for module in self.hf.modules() if type(module).__name__ in names]

    def hidden(self, packed: Packed) -> Tensor:
        """``[T, D]`` last hidden states of a packed row."""
        output = self.hf.base_model(  # type: ignore[operator]
            input_ids=packed.token_ids[None],
            position_ids=packed.positions[None],
            use_cache=False,
            **attention_arguments(self.attention, packed.families, packed.token_ids.device),
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Logprobs of the trained tokens of a packed row, at each sample's temperature.

        A row without trained tokens answers for one arbitrary token, so that every rank runs the same collectives
        forward and backward; the caller weighs it with 0.

        Returns:
            ``[max(N, 1)]`` float32 logprobs with gradient, and entropies in nats without.
        """
        hidden = self.hidden(packed)
        if packed.targets.numel():
            rows, targets, temperature = packed.logit_rows, packed.targets, packed.temperature
        else:
            rows = targets = torch.zeros(1, dtype=torch.int64, device=hidden.device)
            temperature = torch.ones(1, device=hidden.device)
        chosen = hidden.index_select(0, rows)
        size = max(1, _CHUNK_ELEMENTS // int(self.config.get_text_config().vocab_size))
        if rows.numel() <= size:
            return self._logprobs(chosen, targets, temperature)
        parts = [
            checkpoint(self._logprobs, *chunk, use_reentrant=False)
            for chunk in zip(*(torch.split(tensor, size) for tensor in (chosen, targets, temperature)), strict=True)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _logprobs(self, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(hidden).float() / temperature[:, None]
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return -nll_loss(logprobs, targets, reduction="none"), entropy


def load_policy(path: str | Path, *, attention: str, gradient_checkpointing: bool = False) -> PolicyModel:
    """Any causal model from a Hugging Face folder, whole, in float32 on the CPU, without dropout.

    The trunk and head are compared with the model's own logits, so that a family which does more after its head
    (capping, scaling) is refused instead of trained on other probabilities.

    Args:
        path: the folder.
        attention: ``segments`` or ``flash_attention_2``.
        gradient_checkpointing: recompute each layer in the backward.

    Raises:
        DataError: the folder holds no causal model that can be loaded.
        ConfigError: the family can't be trained packed.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise DataError(f"model.path={str(path)!r} is no Hugging Face folder: it has no config.json")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        for name in vars(config):
            if name.endswith(("dropout", "_pdrop")):
                setattr(config, name, 0.0)
        with no_progress_bars():
            hf = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=torch.float32, attn_implementation=attention, local_files_only=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"model.path={str(path)!r} could not be loaded as a causal model: {error}") from error
    if not getattr(hf, "_supports_attention_backend", False):
        raise ConfigError(
            f"model.path={str(path)!r}: {type(hf).__name__} doesn't use transformers' attention interface, which "
            "packed rows need; choose another family"
        )
    if gradient_checkpointing:
        # transformers 5.x renamed it on the way to 6
        enable = getattr(hf, "activation_checkpointing_enable", None) or hf.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    hf.train()  # checkpointing is off in eval mode; there is no dropout to switch
    model = PolicyModel(hf, attention)
    if attention != "flash_attention_2":  # which has no CPU kernel; the family's answer is the same
        _check_head(model, str(path))
    return model


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers' progress bars off the terminal, which is the command line's."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@torch.no_grad()
def _check_head(model: PolicyModel, path: str) -> None:
    ids = torch.arange(4) % int(model.config.get_text_config().vocab_size)
    arguments = attention_arguments(model.attention, [Family(0, (4,))], ids.device)
    own = model.hf(input_ids=ids[None], position_ids=torch.arange(4)[None], use_cache=False, **arguments).logits[0]
    trunk = model.hf.base_model(  # type: ignore[operator]
        input_ids=ids[None], position_ids=torch.arange(4)[None], use_cache=False, **arguments
    ).last_hidden_state[0]
    if not torch.allclose(own, model.head(trunk), rtol=1e-4, atol=1e-4):
        raise ConfigError(
            f"model.path={path!r}: {type(model.hf).__name__} changes logits after its output layer (capping or "
            "scaling), which the trainer doesn't do; choose another family"
        )


def shard_over(model: PolicyModel, mesh: DeviceMesh, *, dtype: torch.dtype) -> None:
    """FSDP2 on every layer and on the root; gradients are SUMMED over ranks, never averaged.

    The divide factor has to be set on every FSDP module: on the root alone, layers still average.

    Args:
        model: as loaded, alike on every rank.
        mesh: one-dimensional.
        dtype: of the forward; parameters, gradients and the optimizer stay in float32.
    """
    policy = MixedPrecisionPolicy(param_dtype=None if dtype is torch.float32 else dtype, reduce_dtype=torch.float32)
    for block in model.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
