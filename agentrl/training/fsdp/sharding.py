"""Sharding: FSDP2 over a role's model, gathered for forward passes and read as shards.

- While a module is gathered, its ``named_parameters`` are whole copies in the forward's dtype, not
  the weights that the optimizer updates.
- A backward pass shards every module again. A forward pass without gradients leaves the root
  gathered, so it runs under ``without_gradients``.
- Weights are read by ``sharded_parameters`` only, whichever backend holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from agentrl.errors import TrainingError
from agentrl.training.models.packed_model import PackedModel
from agentrl.training.names import PREFIX


def shard_over(
    model: PackedModel,
    mesh: DeviceMesh,
    experts: DeviceMesh | None = None,
    *,
    dtype: torch.dtype,
    keep_gathered: bool = False,
) -> None:
    """Applies FSDP2 to embedding, every layer, head and root; gradients are SUMMED over ranks,
    never averaged.

    - The divide factor has to be set on every FSDP module: on the root alone, layers still average.
      One rank has none, since FSDP would divide a copy of every gradient by it.
    - Experts that have a mesh of their own are gathered apart within their layer.
    - The head stays gathered after its forward pass, since its backward pass is next.
    - A weight that embedding and head share is the root's.

    Args:
        model: as loaded, equal on every rank, or divided over a mesh beside ``mesh``.
        mesh: one-dimensional, or the second dimension shards and the first has replicas.
        experts: the same of the experts of mixtures; None has them with their layer.
        dtype: of the forward pass; parameters, gradients and the optimizer stay as loaded.
        keep_gathered: every module stays gathered after its forward pass.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=dtype if dtype is torch.bfloat16 else None,
        # A sum of bfloat16 gradients would be rounded once a rank.
        reduce_dtype=torch.promote_types(dtype, torch.float32),
        # It would round the temperatures of a row too.
        cast_forward_inputs=False,
    )
    apart: dict[nn.Module, DeviceMesh] = {}
    if experts is not None:
        apart = {one.experts: experts for one in model.mixtures()}
    for module in (*apart, *model.input_modules(), *model.blocks()):
        own = apart.get(module, mesh)
        fully_shard(
            module, mesh=own, mp_policy=policy, reshard_after_forward=not keep_gathered
        )
    for module in model.output_modules():
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(
        model,
        mesh=mesh,
        mp_policy=policy,
        reshard_after_forward=False,
        # of the head, which the model holds by another name too
        ignored_params={
            one for module in model.output_modules() for one in module.parameters()
        },
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            if apart.get(module, mesh).size() > 1:
                module.set_gradient_divide_factor(1.0)
            # With a factor torch asks for PREMUL_SUM otherwise, which NCCL alone has.
            module.set_force_sum_reduction_for_comms(True)


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Runs forward passes without gradients, and shards every module again at the end.

    The root stays gathered from one forward pass to the next meanwhile. After one that raises it
    stays gathered, and the role can be neither saved nor published.
    """
    with torch.no_grad():
        yield
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def is_first_copy(tensor: Tensor) -> bool:
    """Whether this rank is the first of those that hold this shard; it alone counts it.

    A mesh of a part of the ranks, such as that of a weight which tensor parallelism leaves whole,
    has copies beside it, the first of which is rank 0's.
    """
    if not isinstance(tensor, DTensor):
        return True
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "a rank holds shards of its own meshes alone"
    copies = zip(coordinate, tensor.placements, strict=True)
    is_first = all(place == 0 for place, kind in copies if kind.is_replicate())
    return is_first and 0 in mesh.mesh.flatten().tolist()


def sharded_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name, as the optimizer updates them, to save, publish or compare.

    Args:
        model: not gathered. After ``shard_over`` every parameter is a DTensor; the plain backend's
            are whole, and in a forward's dtype while they are gathered.

    Raises:
        TrainingError: a module is gathered.
    """
    named = dict(model.named_parameters())
    kind = DTensor if isinstance(model, FSDPModule) else nn.Parameter
    gathered = [
        name for name, parameter in named.items() if not isinstance(parameter, kind)
    ]
    if gathered:
        raise TrainingError(
            f"{gathered[0].removeprefix(PREFIX)} is gathered, so it is a copy in the forward's "
            f"dtype and not the weight itself; run forwards that no backward follows by "
            f"TrainBackend.infer, and build the role again from its checkpoint "
            f"where a forward or backward has failed",
            rank=dist.get_rank(),
        )
    return named
