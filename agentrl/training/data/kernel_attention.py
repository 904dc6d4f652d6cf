"""Kernel attention: a packed row in one kernel of a GPU, and the choice among attentions.

- ``varlen`` is torch's ``varlen_attn``, for rows without shared prefixes.
- ``flex`` is torch's flex attention, with the prefix tree as its block mask.
- ``auto`` takes, on a GPU, ``flex`` for a row with shared prefixes and ``varlen`` for others.
- ``flash_attention_2`` and ``flash_attention_3`` are transformers' own, of packages to install.

Shapes: H query heads, K key heads, T packed tokens, D head width, S samples.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from agentrl.errors import ConfigError
from agentrl.training.data.attention import (
    BY_SPAN,
    REFERENCE,
    SEGMENTS,
    Masks,
    refuse_extras,
)
from agentrl.training.data.block_mask import BlockMasks
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.data.transfer import to_device

AttentionName = Literal[
    "auto", "segments", "varlen", "flex", "flash_attention_2", "flash_attention_3"
]
"""How a packed row attends."""

BY_ROW = "varlen_or_flex"
"""What ``auto`` is on a GPU."""

SHARING = BY_SPAN | {"flex", BY_ROW}
"""Attentions of rows that hold common prefixes once."""

_KERNEL = {"BACKEND": "TRITON"}
"""Of flex attention: its kernel for decoding, which torch takes for rows of fewer than 128 tokens,
fails to compile for some."""

_FLASH: Mapping[str, tuple[Callable[[], bool], str]] = {
    "flash_attention_2": (is_flash_attn_2_available, "flash-attn"),
    "flash_attention_3": (
        is_flash_attn_3_available,
        "flash_attn_3 (flash-attention/hopper)",
    ),
}


def choose_attention(name: AttentionName, device: torch.device, dtype: torch.dtype) -> str:
    """The attention function that a setting stands for; what is absent is refused, never swapped.

    Args:
        name: as set.
        device: where the model will run.
        dtype: of its forward pass. ``auto`` is ``segments`` where kernels have none of it.

    Raises:
        ConfigError: the device, the dtype or what is installed does not have it.
    """
    if name == SEGMENTS:
        return name
    half = dtype in (torch.bfloat16, torch.float16)
    if name == "auto" and (device.type != "cuda" or not half):
        return SEGMENTS
    told = f"ModelConfig.attention={name!r}"
    if device.type != "cuda":
        raise ConfigError(
            f"{told} needs a CUDA device, got {device.type!r}; set it to auto or segments, or "
            "PlacementConfig.device=cuda"
        )
    if not half and name != "flex":
        raise ConfigError(
            f"{told} computes in bfloat16, got ModelConfig.dtype="
            f"'{str(dtype).removeprefix('torch.')}'; set it to auto, flex or segments, or the "
            "dtype to bfloat16"
        )
    if name in _FLASH and not _FLASH[name][0]():
        raise ConfigError(
            f"{told} needs the package {_FLASH[name][1]}, which was not found for this GPU; "
            "install it, or set auto"
        )
    if name in ("auto", "varlen"):
        _check_varlen(told)
    return BY_ROW if name == "auto" else name


def usable_attention() -> list[str]:
    """Values of ``model.attention`` that a bfloat16 model may have on this machine's GPU."""
    usable = []
    for name in get_args(AttentionName):
        try:
            choose_attention(name, torch.device("cuda"), torch.bfloat16)
        except ConfigError:
            continue
        usable.append(name)
    return usable


def _check_varlen(told: str) -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        raise ConfigError(
            f"{told} needs a GPU of compute capability 8.0 (A100) or newer, found "
            f"{torch.cuda.get_device_name()}; set segments"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Boundaries:
    """Of a row's samples.

    Args:
        ends: ``[S+1]`` int32, 0 and the end of each sample.
        longest: tokens of the longest one.
    """

    ends: Tensor
    longest: int


def attention_arguments(
    attention: str, spans: Sequence[Span], device: torch.device
) -> dict[str, Any]:
    """The arguments of a packed forward pass for the attention function named ``attention``.

    For our own it is one object, into which compiled layers don't look.
    """
    if attention in BY_SPAN or attention == REFERENCE:
        return {"masks": Masks(spans)}
    shares = any(span.parent != ROOT for span in spans)
    if attention == "flex" or (attention == BY_ROW and shares):
        return {"block_masks": BlockMasks(spans, device)}
    assert not shares, f"{attention} has no shared prefixes"
    lengths = [span.size for span in spans]
    ends = {"ends": np.cumsum([0, *lengths], dtype=np.int32)}
    cumulative = to_device(ends, device)["ends"]
    if attention not in _FLASH:
        return {"boundaries": Boundaries(cumulative, max(lengths))}
    return {
        "cu_seq_lens_q": cumulative,
        "cu_seq_lens_k": cumulative,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    boundaries: Boundaries,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sample by torch's ``varlen_attn``; see ``segment_attention``.

    Args:
        boundaries: of the samples.
    """
    refuse_extras("varlen", extras)
    function: Callable[..., Any] = varlen_attn
    groups = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {}
    # Only later versions of torch take key heads that are fewer.
    if groups > 1 and "enable_gqa" in inspect.signature(function).parameters:
        options["enable_gqa"] = True
    elif groups > 1:
        key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    rows = (one[0].transpose(0, 1) for one in (query, key, value))
    found = function(
        *rows,
        boundaries.ends,
        boundaries.ends,
        boundaries.longest,
        boundaries.longest,
        scale=scaling,
        # transformers counts a token in its own window, and torch does not.
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        **options,
    )
    return found[None], None


def flex(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    block_masks: BlockMasks,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Causal attention over the prefix tree by flex attention; see ``segment_attention``.

    Args:
        block_masks: of the row.
        softcap: the bound of a family that caps its scores: c · tanh(score / c).
    """
    refuse_extras("flex", extras)
    attend: Any = _compiled_flex() if query.is_cuda else flex_attention
    found: Tensor = attend(
        query,
        key,
        value,
        score_mod=None if softcap is None else _capped(softcap),
        block_mask=block_masks.of(sliding_window),
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        kernel_options=_KERNEL if query.is_cuda else None,
    )
    return found.transpose(1, 2), None


def by_row(module: nn.Module, *tensors: Any, **arguments: Any) -> tuple[Tensor, None]:
    """``flex`` for a row with shared prefixes, else ``varlen``."""
    attend: Callable[..., tuple[Tensor, None]] = varlen_attention
    if "block_masks" in arguments:
        attend = flex
    return attend(module, *tensors, **arguments)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """Uncompiled it computes all scores at once, which is for comparisons on a CPU."""
    return torch.compile(flex_attention)


@functools.cache
def _capped(bound: float) -> Callable[..., Tensor]:
    def cap(score: Tensor, *_: Tensor) -> Tensor:
        return bound * torch.tanh(score / bound)

    return cap


AttentionInterface.register("varlen", varlen_attention)
AttentionInterface.register("flex", flex)
AttentionInterface.register(BY_ROW, by_row)
