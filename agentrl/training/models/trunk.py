"""Trunk: how the layers of a Hugging Face model run, recomputed, compiled or faster on a CPU.

- Recomputation and compilation wrap a layer's ``forward``, within the hooks by which FSDP gathers
  it.
- ``recompute="selective"`` keeps what costs most to make again: the results of attention kernels
  and of every second matrix product. The rest of a layer is computed again.
- A compiled layer has one graph for each length of a row, so that rows are rounded up to few
  lengths (``rounded_length``). Attention is left out of the graphs: its arguments differ by row.
  So are mixtures of experts, whose products have other sizes in each.
- After the last attention, no row depends on another. The hidden states of prompts and tool outputs
  are unused there, and are often most of a row. So the last MLP computes the chosen rows alone, on
  a CPU (``PackedModel.skips_mlp_rows``), where the saved arithmetic outweighs the copies.
- The faster RMSNorm is a CPU's too; a GPU keeps the model's own norm.

Shapes: T packed tokens, R chosen rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl.training.models.mixture import Mixture

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
        # The policy of recomputation sees a compiled flex attention as this operator.
        "inductor_compiled_code",
    }
)
"""Kernels of attention by their operators' names."""

_PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default"})


def wrap_blocks(
    blocks: Sequence[nn.Module], *, recompute: Recompute, compiles: bool
) -> None:
    """Makes layers recompute or compile, or both.

    Args:
        blocks: the layers; not yet sharded.
        recompute: see the module.
        compiles: whether ``torch.compile`` makes their forward.
    """
    if compiles:
        torch._dynamo.config.recompile_limit = GRAPHS
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        _leave_out_attention()
        for mixture in (module for block in blocks for module in block.modules()):
            if isinstance(mixture, Mixture):
                mixture.forward = torch.compiler.disable(mixture.forward)  # type: ignore[method-assign, no-untyped-call]
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
        # One count is of the forward pass, one of the recomputation.
        self._products = {False: 0, True: 0}

    def __call__(
        self, context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any
    ) -> CheckpointPolicy:
        name = str(operator)
        keeps = name in _KEPT
        if name in _PRODUCTS:
            self._products[context.is_recompute] += 1
            keeps = self._products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _leave_out_attention() -> None:
    for name in ("segments", "varlen", "flex", "varlen_or_flex"):
        function = ALL_ATTENTION_FUNCTIONS[name]
        # The roles of a process come here one after the other, and share the functions.
        if not getattr(function, "_torchdynamo_disable", False):
            AttentionInterface.register(name, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


MLP_ROWS = "mlp_rows"
"""The argument of a trunk's forward that chooses rows: ``[R]`` int64, different ones."""


def skip_mlp_rows(block: nn.Module) -> None:
    """Makes the dense MLP of a decoder's last layer compute chosen rows alone.

    - The trunk still returns ``[1, T, D]``: the model's own numbers in the chosen rows, zeros
      elsewhere.
    - The rows are an argument of the layer, so that a recomputation in the backward pass chooses
      the same ones.

    Args:
        block: the layer; left unchanged unless it has an ``mlp`` that computes each row
            independently. A mixture of experts computes all rows, so that its loads are those of
            all tokens.
    """
    mlp = getattr(block, "mlp", None)
    # a mixture of experts has another class name
    if isinstance(mlp, nn.Module) and type(mlp).__name__.endswith("MLP"):
        hooks = _RowHooks()
        block.register_forward_pre_hook(hooks.take_rows, with_kwargs=True)
        mlp.register_forward_pre_hook(hooks.select)
        mlp.register_forward_hook(hooks.put_back)


class _RowHooks:
    def __init__(self) -> None:
        self._rows: Tensor | None = None
        self._shape = torch.Size()

    def take_rows(
        self, _block: nn.Module, _args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._rows = keywords.get(MLP_ROWS)

    def select(self, _mlp: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden: Tensor = args[0]
        self._shape = hidden.shape
        return (
            args if self._rows is None else (hidden.index_select(1, self._rows), *args[1:])
        )

    def put_back(self, _mlp: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        if self._rows is None:
            return output
        return output.new_zeros(self._shape).index_copy_(1, self._rows, output)


class RMSNorm(nn.Module):
    """``weight · x / sqrt(mean(x²) + eps)`` (arXiv:1910.07467, eq. 4), in at least float32.

    Transformers writes it as a chain of operations, whose results autograd stores and reads again.
    This module stores its input and one number a row, and defines its own backward pass.

    Args:
        weight: ``[D]``.
        eps: added to the mean square.
    """

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., D]``, of the dtype that ``weight`` and ``hidden`` promote to."""
        normed: Tensor = _Normalize.apply(hidden, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = length.square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(hidden, weight, inverse)
        # The product is rounded before the weight is applied, as in transformers' Llama.
        normed: Tensor = (wide * inverse).to(hidden.dtype) * weight
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, weight, inverse = ctx.saved_tensors
        width = hidden.shape[-1]
        grad = grad.to(inverse.dtype).contiguous()
        scale = weight.to(inverse.dtype)
        normed = hidden * inverse
        by_normed = (grad * normed).view(-1, width)
        to_weight = by_normed.sum(0)
        along = torch.mv(by_normed, scale).div_(width).view_as(inverse)
        to_hidden = (grad * scale).addcmul_(normed, along, value=-1).mul_(inverse)
        return to_hidden.to(hidden.dtype), to_weight.to(weight.dtype), None


@torch.no_grad()
def patch_rmsnorm(model: nn.Module) -> None:
    """Replaces a model's norms by ``RMSNorm`` if it gives the same numbers; parameters keep their
    names.

    A norm is found by its ``variance_epsilon`` and compared on random numbers, because families
    differ in how they offset or scale the weight.

    Args:
        model: not yet sharded, for a CPU; it may have no weights yet.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = getattr(child, "weight", None)
            eps = getattr(child, "variance_epsilon", None)
            if not isinstance(weight, nn.Parameter) or not isinstance(eps, float):
                continue
            generator = torch.Generator().manual_seed(0)
            probe, drawn = (
                torch.randn(shape, generator=generator, dtype=weight.dtype, device="cpu")
                for shape in ((4, weight.shape[-1]), weight.shape)
            )
            own = functional_call(child, {"weight": drawn}, (probe,))
            other = RMSNorm(nn.Parameter(drawn), eps)(probe)
            if torch.allclose(own, other, rtol=1e-5, atol=1e-6):
                setattr(parent, name, RMSNorm(weight, eps))
