"""Muon: momentum whose every matrix is orthogonalized before it is applied.

Source: https://kellerjordan.github.io/posts/muon.

- ``torch.optim.Muon`` also runs on sharded matrices, but its bfloat16 iteration over shards moves
  weights 1.5% away from those of one process (measured at world sizes 1 and 2).
- Here the iteration is float32, over whole matrices. The result does not depend on the world size.
- The momentum stays sharded. Of W matrices, divided by rows over W ranks, each rank gathers one,
  iterates on it, and sends its rows back. Two exchanges move all of them.
- A stack of experts' matrices is divided by experts, so that each rank has its own whole.

Legend: W ranks, N numbers of a shard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from agentrl.training.fsdp.weights import whole_tensor
from agentrl.training.parallel.shards import divided_as, local

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of p(x) = ax + bx³ + cx⁵, whose iteration moves every singular value of (0, 1] near 1
in few steps."""

_ITERATIONS = 5


def orthogonalize(matrix: Tensor) -> Tensor:
    """The approximately nearest orthogonal matrix: U·S'·Vᵀ with singular values S' in about [0.7,
    1.2].

    Args:
        matrix: ``[rows, columns]`` float32.
    """
    # The Gram matrix below is then that of the shorter side.
    tall = matrix.shape[0] > matrix.shape[1]
    current = matrix.T if tall else matrix
    # the Frobenius norm bounds the largest singular value; by the clamp a gradient of zeros stays 0
    # and does not become NaN
    current = current / current.norm().clamp(min=1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = current @ current.T
        current = torch.addmm(
            current, torch.addmm(gram, gram, gram, beta=b, alpha=c), current, beta=a
        )
    return current.T if tall else current


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for matrices that may be sharded, and
    for stacks of them.

    The learning rate is scaled by sqrt(max(1, rows / columns)), so that updates have similar sizes
    in any shape.

    Args:
        params: matrices, or ``[experts, rows, columns]``, each of whose matrices is one by itself.
        lr: learning rate.
        momentum: the share of the old momentum that is kept.
        weight_decay: decoupled, multiplied by the learning rate.

    Raises:
        ValueError: a parameter is not a matrix.
    """

    def __init__(
        self, params: Any, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim not in (2, 3):
                    raise ValueError(
                        "Muon takes matrices and stacks of them, got a parameter of shape "
                        f"{tuple(parameter.shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient; all ranks take part in the same order."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            moved = [
                parameter for parameter in group["params"] if parameter.grad is not None
            ]
            divided = [parameter for parameter in moved if _divided_by_rows(parameter.grad)]
            for parameter in moved:
                if not _divided_by_rows(parameter.grad):
                    self._move(parameter, _alone(self._ahead(parameter, group)), group)
            by_mesh = itertools.groupby(divided, key=lambda one: one.grad.device_mesh)
            for mesh, own in by_mesh:
                # Replicas on the axes before make the same matrices each for itself.
                ranks = mesh.get_group(mesh.ndim - 1)
                matrices, size = list(own), ranks.size()
                for first in range(0, len(matrices), size):
                    together = matrices[first : first + size]
                    ahead = [self._ahead(parameter, group) for parameter in together]
                    changes = _together(ahead, ranks)
                    for parameter, change in zip(together, changes, strict=True):
                        self._move(parameter, change, group)

    def _ahead(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        """Nesterov's: the gradient, and the momentum with it."""
        gradient = parameter.grad
        assert gradient is not None, "step has looked"
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum: Tensor = state["momentum_buffer"]
        # An average, as in the source's code; torch's SGD adds the whole gradient.
        momentum.lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"])

    def _move(self, parameter: Tensor, change: Tensor, group: dict[str, Any]) -> None:
        scale = math.sqrt(max(1.0, parameter.shape[-2] / parameter.shape[-1]))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(change, alpha=-group["lr"] * scale)


def _divided_by_rows(tensor: Tensor | None) -> bool:
    """Whether a matrix lies in rows over the ranks of its mesh's last axis alone, of several."""
    return (
        isinstance(tensor, DTensor)
        and tensor.device_mesh.size() > 1
        and tensor.ndim == 2
        and type(tensor.placements[-1]) is Shard
        and tensor.placements[-1].dim == 0
        and all(isinstance(one, Replicate) for one in tensor.placements[:-1])
    )


def _alone(ahead: Tensor) -> Tensor:
    """The change of a matrix that is not divided by rows, or of a stack."""
    if not isinstance(ahead, DTensor):
        return _each(ahead)
    by_matrix = ahead.ndim == 3 and all(
        isinstance(one, Replicate)
        or (isinstance(one, Shard | _StridedShard) and one.dim == 0)
        for one in ahead.placements
    )
    # one rank has all of it, and asks no group
    if by_matrix or ahead.device_mesh.size() == 1:
        return divided_as(ahead, _each(ahead.to_local()))
    # every rank makes the same matrix and keeps its own part of it: nothing is sent back
    return distribute_tensor(
        _each(whole_tensor(ahead)), ahead.device_mesh, ahead.placements, src_data_rank=None
    )


def _each(tensor: Tensor) -> Tensor:
    if tensor.ndim == 2:
        return orthogonalize(tensor)
    made = torch.empty_like(tensor)
    for place, matrix in enumerate(tensor):
        made[place] = orthogonalize(matrix)
    return made


def _together(ahead: Sequence[Tensor], ranks: dist.ProcessGroup) -> list[Tensor]:
    """The changes of at most W matrices, each of which one rank makes.

    Args:
        ahead: DTensors, divided by rows over ``ranks``.
        ranks: the W ranks; all of them call it with the same matrices.
    """
    world, rank = ranks.size(), ranks.rank()
    held = [local(one).contiguous() for one in ahead]
    # of the matrix of each rank
    own = [one.numel() for one in held] + [0] * (world - len(held))
    # How many numbers of this rank's matrix each rank has.
    theirs = [0] * world
    shape: Sequence[int] = (0, 0)
    if rank < len(ahead):
        rows, columns = shape = ahead[rank].shape
        # FSDP divides rows so.
        step = -(-rows // world)
        theirs = [max(0, min(step, rows - one * step)) * columns for one in range(world)]
    like = held[0]
    whole = like.new_empty(sum(theirs))
    dist.all_to_all_single(
        whole, torch.cat([one.view(-1) for one in held]), theirs, own, ranks
    )
    change = orthogonalize(whole.view(*shape)).contiguous() if whole.numel() else whole
    back = like.new_empty(sum(own))
    dist.all_to_all_single(back, change.view(-1), own, theirs, ranks)
    parts = torch.split(back, own)[: len(held)]
    return [
        divided_as(one, part.view_as(mine))
        for part, mine, one in zip(parts, held, ahead, strict=True)
    ]
