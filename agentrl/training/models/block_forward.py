"""Block forward: recomputation and compilation of a model's repeated layers.

- Both wrap a layer's ``forward``, within the hooks by which FSDP gathers it.
- ``recompute="selective"`` keeps what costs most to make again: the results of attention kernels
  and of every second matrix product. The rest of a layer is computed again.
- A compiled layer has one graph for each length of a row, so that rows are rounded up to few
  lengths (``rounded_length``). Attention is left out of the graphs: its arguments differ by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Recompute = bool | Literal["selective"]
"""What of a layer is computed again in the backward pass: nothing, all, or what is cheap."""

COMPILER = "inductor"
"""The backend of ``torch.compile``."""

GRAPHS = 64
"""Of one function; a further one is an error, since the layer would run uncompiled."""

_KEPT = frozenset(
    {
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
        "torch_attn._varlen_attn.default",
        "flash_attn._flash_attn_varlen_forward.default",
        "flash_attn_3._flash_attn_forward.default",
        "flex_attention",
        "inductor_compiled_code",  # what a compiled flex attention is to the policy
    }
)
"""Kernels of attention by their operators' names."""

_PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default"})


def wrap_blocks(blocks: Sequence[nn.Module], *, recompute: Recompute, compiles: bool) -> None:
    """Makes layers recompute or compile, or both.

    Args:
        blocks: the layers; not yet sharded.
        recompute: see the module.
        compiles: whether ``torch.compile`` makes their forward.
    """
    if compiles:
        _allow_graphs()
        _leave_out_attention()
    for block in blocks:
        forward: Callable[..., Any] = block.forward
        if compiles:
            forward = torch.compile(forward, dynamic=False, backend=COMPILER)
        if recompute:
            forward = partial(_recomputed, forward, recompute == "selective")
        block.forward = forward


def rounded_length(tokens: int) -> int:
    """The next of eight lengths an octave, at least 64: at most an eighth of a row is filler."""
    step = max(64, 1 << max(0, (tokens - 1).bit_length() - 4))
    return -(-tokens // step) * step


def _recomputed(
    forward: Callable[..., Any], is_selective: bool, *args: Any, **keywords: Any
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **keywords)
    own: dict[str, Any] = {"context_fn": _contexts} if is_selective else {}
    # no layer draws random numbers
    return checkpoint(
        forward, *args, use_reentrant=False, preserve_rng_state=False, **own, **keywords
    )


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return create_selective_checkpoint_contexts(_Policy())  # type: ignore[no-any-return, no-untyped-call]


class _Policy:
    """Chooses an operator's result, in the order of the forward pass."""

    def __init__(self) -> None:
        self._products = {False: 0, True: 0}  # in the forward pass, and in the recomputation

    def __call__(
        self, context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any
    ) -> CheckpointPolicy:
        name = str(operator)
        keeps = name in _KEPT
        if name in _PRODUCTS:
            self._products[context.is_recompute] += 1
            keeps = self._products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _allow_graphs() -> None:
    torch._dynamo.config.recompile_limit = GRAPHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def _leave_out_attention() -> None:
    for name in ("segments", "varlen", "flex", "varlen_or_flex"):
        function = ALL_ATTENTION_FUNCTIONS[name]
        if not getattr(function, "_torchdynamo_disable", False):
            AttentionInterface.register(name, torch.compiler.disable(function))  # type: ignore[no-untyped-call]
