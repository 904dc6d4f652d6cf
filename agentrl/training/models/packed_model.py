"""What every role's model has in common: a Hugging Face trunk over a packed row.

Shapes: T packed tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from agentrl.errors import ConfigError, DataError
from agentrl.render import sees_images
from agentrl.training.data.attention import SEGMENTS, attention_arguments
from agentrl.training.data.packing import Packed
from agentrl.training.models.mlp_row_skip import LAST_ROWS, spare_last_rows
from agentrl.training.models.patch_rmsnorm import patch_rmsnorm

__all__ = [
    "PREFIX",
    "DType",
    "PackedModel",
    "load_pretrained",
    "no_progress_bars",
    "torch_dtype",
]

PREFIX = "hf."
"""What the wrapper puts before every parameter's Hugging Face name."""

DType = Literal["float32", "bfloat16"]
"""Of a forward, and of published weights."""


def torch_dtype(name: DType) -> torch.dtype:
    """``torch.float32`` or ``torch.bfloat16``."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


class PackedModel(nn.Module):
    """The wrapper that FSDP shards as its root; what its forward answers with is the role's own.

    Args:
        hf: the model, with attention ``attention``.
        attention: name of its attention function.
    """

    def __init__(self, hf: nn.Module, attention: str) -> None:
        super().__init__()
        self.hf = hf
        self.attention = attention
        for block in self.blocks()[-1:]:
            spare_last_rows(block)

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.hf.config

    @property
    def shares_prefixes(self) -> bool:
        """Whether a row may hold what samples begin with alike once."""
        return self.attention == SEGMENTS

    def blocks(self) -> list[nn.Module]:
        """The repeated layers: what FSDP gathers one at a time."""
        names = set(self.hf._no_split_modules or ())  # type: ignore[arg-type]
        return [module for module in self.hf.modules() if type(module).__name__ in names]

    def hidden(self, packed: Packed, rows: Tensor) -> Tensor:
        """``[N, D]`` last hidden states of a packed row, at positions ``rows`` of it.

        Args:
            packed: the row.
            rows: ``[N]`` int64, at least one; some may be equal.
        """
        arguments = attention_arguments(self.attention, packed.spans, packed.token_ids.device)
        if self.shares_prefixes:  # other attentions refuse arguments that they don't know
            arguments[LAST_ROWS] = torch.unique(rows)
        output = self.hf.base_model(  # type: ignore[operator]
            input_ids=packed.token_ids[None],
            position_ids=packed.positions[None],
            use_cache=False,
            **arguments,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden.index_select(0, rows)


def load_pretrained(
    auto: Any,
    path: str | Path,
    setting: str,
    kind: str,
    *,
    attention: str,
    gradient_checkpointing: bool = False,
    **config_values: object,
) -> tuple[nn.Module, frozenset[str]]:
    """A model from a Hugging Face folder, whole, in float32 on the CPU, without dropout, ready to be trained packed.

    Args:
        auto: the transformers class of the kind that is asked for, such as ``AutoModelForCausalLM``.
        path: the folder.
        setting: what names the folder, and
        kind: what it should hold, both for errors.
        attention: ``segments`` or ``flash_attention_2``.
        gradient_checkpointing: recompute each layer in the backward.
        config_values: entries of the model's configuration to set.

    Returns:
        The model, and the names of weights that the folder does not hold.

    Raises:
        DataError: the folder holds no such model that can be loaded.
        ConfigError: the family can't be trained packed.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise DataError(f"{setting}={str(path)!r} is no Hugging Face folder: it has no config.json")
    if sees_images(folder):
        raise ConfigError(
            f"{setting}={str(path)!r} sees images, and only models of text alone can be trained; play it with "
            "`agentrl rollout` or `agentrl eval` on rollout.engine: sglang, or choose a model of text"
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **config_values)
        for name in vars(config):
            if name.endswith(("dropout", "_pdrop")):
                setattr(config, name, 0.0)
        with no_progress_bars(), _no_load_report():  # what is missing is returned
            hf, found = auto.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                attn_implementation=attention,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{setting}={str(path)!r} could not be loaded as {kind}: {error}"
        ) from error
    if not getattr(hf, "_supports_attention_backend", False):
        raise ConfigError(
            f"{setting}={str(path)!r}: {type(hf).__name__} doesn't use transformers' attention interface, which "
            "packed rows need; choose another family"
        )
    if gradient_checkpointing:
        # transformers 5.x renamed it on the way to 6
        enable = (
            getattr(hf, "activation_checkpointing_enable", None) or hf.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
    patch_rmsnorm(hf)
    hf.train()  # checkpointing is off in eval mode; there is no dropout to switch
    return hf, frozenset(found["missing_keys"])


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


@contextmanager
def _no_load_report() -> Iterator[None]:
    """Keep transformers' table of missing weights off the terminal."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
