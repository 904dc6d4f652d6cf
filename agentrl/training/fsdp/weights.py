"""Weights: whole tensors by their names in the folder, and each rank's parts of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from agentrl.engines.torch.model.folder_names import ParameterGroup
from agentrl.training.fsdp.sharding import is_first_copy, sharded_parameters
from agentrl.training.models.folder_weights import shard_ranges
from agentrl.training.models.lora import merge
from agentrl.training.models.packed_model import PackedModel
from agentrl.training.names import PREFIX
from agentrl.training.parallel.shards import WeightPart, divided_as, local, offset


@torch.no_grad()
def full_weights(model: PackedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """``(name in the folder, whole tensor)`` one at a time; a tied weight comes once.

    - A tensor is cast before it is gathered, for half the bytes on the wire and the least memory.
    - Each tensor is a collective, so every rank must run the iteration to its end.
    - A tensor may share memory with the parameter: copy it before the next optimizer step.

    Args:
        model: of any backend.
        dtype: as served.

    Raises:
        TrainingError: weights are gathered.
    """
    for group, parts in _groups(model, dtype):
        wholes = {name: whole_tensor(part) for name, part in parts.items()}
        yield from model.names.revert(group, wholes).items()


def persistent_buffers(model: PackedModel) -> dict[str, Tensor]:
    """What a folder holds beside parameters, such as the bias of a router, by its name there; it is
    equal on every rank and never trained."""
    saved = model.hf.state_dict()
    return {
        model.names.renamed(name): buffer.cpu()
        for name, buffer in model.hf.named_buffers()
        if name in saved
    }


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor gathered from all ranks: of one that is divided over ``tp`` or ``ep`` too, FSDP's
    shards of a part first."""
    if not isinstance(tensor, DTensor):
        return tensor
    mesh, (*within, divided) = tensor.device_mesh, tensor.placements
    names = mesh.mesh_dim_names
    assert names is not None, "rank_mesh names them"
    if names[-1] not in ("tp", "ep"):
        return tensor.full_tensor()
    assert isinstance(divided, Shard), "a layer is divided by a dimension"
    shape = list(tensor.shape)
    shape[divided.dim] //= mesh.size(len(names) - 1)
    part = DTensor.from_local(
        tensor.to_local(),
        mesh[names[:-1]],
        # Over a dimension that was divided before, FSDP says ``_StridedShard``, of the whole
        # tensor. Of this rank's part it is a plain shard.
        [kind if kind.is_replicate() else Shard(0) for kind in within],
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    ).full_tensor()
    return DTensor.from_local(
        part, mesh[names[-1:]], [divided], run_check=False
    ).full_tensor()


def _groups(
    model: PackedModel, dtype: torch.dtype
) -> Iterator[tuple[ParameterGroup, dict[str, Tensor]]]:
    """What is converted together, as this rank has it, with what adapters add to it."""
    state = sharded_parameters(model)
    for group in model.names.groups:
        yield (
            group,
            {
                name: _served(model, name, state[PREFIX + name].detach()).to(dtype)
                for name in group.parameters
            },
        )


def _served(model: PackedModel, name: str, own: Tensor) -> Tensor:
    """A parameter as engines compute with it; every rank calls it alike."""
    if model.lora is None or name not in model.lora.factors:
        return own
    pair = model.lora.factors[name]
    factors = [whole_tensor(model.hf.get_parameter(one).detach()) for one in pair]
    part = merge(model.lora.record, name, local(own), factors, shard_ranges(own))
    return divided_as(own, part)


@torch.no_grad()
def weight_parts(model: PackedModel, dtype: torch.dtype) -> Iterator[WeightPart]:
    """This rank's parts of what ``full_weights`` yields; each number of it is one rank's, of which
    others may have a copy.

    Shards are not gathered, also those of stacked experts. Parameters that lie in the folder in
    another form are, and rank 0 counts them; so every rank runs the iteration to its end.

    Raises:
        TrainingError: weights are gathered already.
    """
    for group, parts in _groups(model, dtype):
        tensor = next(iter(parts.values()))
        if group.is_renamed:
            (name,) = group.tensors
            is_copy = not is_first_copy(tensor)
            yield WeightPart(
                name, tuple(tensor.shape), offset(tensor), local(tensor), is_copy
            )
            continue
        if group.experts is None:
            wholes = {name: whole_tensor(part) for name, part in parts.items()}
            is_copy, made = dist.get_rank() > 0, model.names.revert(group, wholes)
        else:
            is_copy, made = not is_first_copy(tensor), _own_experts(model, group, tensor)
        for name, whole in made.items():
            yield WeightPart(name, tuple(whole.shape), (0,) * whole.ndim, whole, is_copy)


def _own_experts(
    model: PackedModel, group: ParameterGroup, stack: Tensor
) -> dict[str, Tensor]:
    """The folder's tensors of the experts that this rank holds of a stack."""
    first, *others = offset(stack)
    assert not any(others), "stacks are divided by experts"
    own = local(stack)
    return model.names.revert_experts(group, own, first) if own.numel() else {}
