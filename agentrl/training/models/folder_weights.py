"""Folder weights: a model's weights in a Hugging Face folder, of which a process reads its shards.

- A model is built on ``meta``, sharded there, and filled: every process reads the slices that its
  DTensors hold, whatever their placements, and casts them in pieces. None holds the whole model.
- Names follow transformers' conversion, and experts that lie one by one in the folder are stacked
  by it. A family with another conversion is read whole, as ``can_slice`` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    dot_natural_key,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from agentrl.errors import DataError

_PIECE_BYTES = 2**25
"""Of a slice, read and cast at once."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""First and last + 1 of each dimension."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, read by slices; what transformers' conversion is given.

    Args:
        file: open; its pages are mapped.
        key: in the file.
        read: collects what is read, by key.
    """

    file: Any
    key: str
    read: dict[str, list[Ranges]]

    def get_shape(self) -> list[int]:
        """The whole shape."""
        shape: list[int] = self.file.get_slice(self.key).get_shape()
        return shape

    def get_dtype(self) -> str:
        """As safetensors names it."""
        name: str = self.file.get_slice(self.key).get_dtype()
        return name

    def __getitem__(self, index: Any) -> Tensor:
        shape = self.get_shape()
        parts = index if isinstance(index, tuple) else ()
        ranges = [part.indices(size)[:2] for part, size in zip(parts, shape, strict=False)]
        ranges += [(0, size) for size in shape[len(ranges) :]]
        self.read.setdefault(self.key, []).append(tuple(ranges))
        found: Tensor = self.file.get_slice(self.key)[index]
        return found


@dataclass(eq=False)
class FolderWeights:
    """Which stored tensors make which weights of a model on ``meta``.

    Args:
        hf: on ``meta``, not sharded yet.
        folder: with ``*.safetensors``.
        named: the setting that names the folder, for errors.

    Attributes:
        missing: names of the model's weights that the folder does not hold.
        new: values of such weights by name, whole, which ``fill`` takes its slices of.
        read: the ranges that were read, by stored name.
        can_slice: whether ``fill`` can read the folder; otherwise it must be read whole.
    """

    hf: nn.Module
    folder: Path
    named: str
    missing: frozenset[str] = field(init=False)
    new: dict[str, Tensor] = field(init=False, default_factory=dict)
    read: dict[str, list[Ranges]] = field(init=False, default_factory=dict)
    can_slice: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self._copied: dict[str, StoredTensor] = {}
        """Stored tensors by the name of their weight."""
        self._merged: dict[str, dict[str, StoredTensor]] = {}
        """Those that are stacked, by the name of their weight and their own."""
        model: Any = self.hf
        self._mapping = get_model_conversion_mapping(model)
        converters = [one for one in self._mapping if isinstance(one, WeightConverter)]
        renamings = [one for one in self._mapping if isinstance(one, WeightRenaming)]
        by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        known = model.state_dict()
        for key, stored in sorted(self._stored(), key=lambda pair: dot_natural_key(pair[0])):
            prefix = model.base_model_prefix
            name, pattern = rename_source_key(key, renamings, converters, prefix, known)
            if name not in known and key in known:
                name, pattern = rename_source_key(key, [], [], prefix, known)
            if name not in known:
                continue
            if pattern is None:
                self._copied[name] = stored
            else:
                self._merged.setdefault(name, {})[key] = stored
                self.can_slice = self.can_slice and _stacks(by_pattern[pattern])
        self._used = [one for one in self._mapping if one.was_used()]
        found = self._copied.keys() | self._merged.keys()
        absent = known.keys() - found
        for one, other in model.all_tied_weights_keys.items():
            if {one, other} & found:
                absent -= {one, other}
        ignored = [re.compile(one) for one in model._keys_to_ignore_on_load_missing or ()]
        self.missing = frozenset(
            name for name in absent if not any(one.search(name) for one in ignored)
        )
        if self.can_slice:
            self._untie_unequal()

    def _stored(self) -> Iterator[tuple[str, StoredTensor]]:
        for path in weight_files(self.folder):
            file: Any = safe_open(path, framework="pt")
            for key in file.keys():  # noqa: SIM118  a file is no mapping
                yield key, StoredTensor(file, key, self.read)

    def _untie_unequal(self) -> None:
        """Weights that the configuration ties, and the folder holds with different values, are two,
        as in transformers."""
        model: Any = self.hf
        for target, source in list(model.all_tied_weights_keys.items()):
            both = [self._copied.get(name) for name in (target, source)]
            if None in both or _equal(*both):  # type: ignore[arg-type]
                continue
            model.all_tied_weights_keys.pop(target)
            parent, _, name = target.rpartition(".")
            own = model.get_parameter(target)
            setattr(model.get_submodule(parent), name, nn.Parameter(torch.empty_like(own)))

    @torch.no_grad()
    def fill(self, device: torch.device) -> None:
        """Gives the model its weights on ``device``: of a DTensor this process's shard.

        Raises:
            DataError: a stored tensor has another shape than its weight, or cannot be read.
        """
        model: Any = self.hf
        owners: dict[int, list[tuple[nn.Module, str]]] = {}
        names: dict[int, list[str]] = {}
        parameters: dict[int, nn.Parameter] = {}
        for prefix, module in model.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    owners.setdefault(id(parameter), []).append((module, name))
                    names.setdefault(id(parameter), []).append(
                        f"{prefix}.{name}" if prefix else name
                    )
                    parameters[id(parameter)] = parameter
        for own, parameter in parameters.items():
            filled = self._filled(names[own], parameter, device)
            for module, name in owners[own]:
                module._parameters[name] = filled
        for name, buffer in model.named_buffers():
            if name in self._copied:
                buffer.copy_(self._copied[name][...])
        model._weight_conversions = self._used
        self._copied.clear()
        self._merged.clear()

    def _filled(
        self, names: Sequence[str], parameter: nn.Parameter, device: torch.device
    ) -> nn.Parameter:
        for name in names:
            if name in self._merged:
                return self._stacked(name, parameter, device)
        source = next((self._copied[name] for name in names if name in self._copied), None)
        new = next((self.new[name] for name in names if name in self.new), None)
        if source is not None and tuple(source.get_shape()) != tuple(parameter.shape):
            raise DataError(
                f"{self.named}: {source.key} has shape {source.get_shape()} and config.json says "
                f"{list(parameter.shape)}; copy or download the folder again"
            )
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local = torch.empty(local.shape, dtype=local.dtype, device=device)
        if source is not None:
            _copy_slices(source, local, shard_ranges(parameter))
        elif new is not None:
            _copy_slices(new, local, shard_ranges(parameter))
        else:
            raise DataError(f"{self.named} lacks {names[0]!r}")
        return _parameter_like(parameter, local)

    def _stacked(self, name: str, parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
        """The weight of experts that the folder holds one by one, by transformers' conversion."""
        config = LoadStateDictConfig(
            dtype=parameter.dtype, device_map={"": device}, weight_mapping=self._mapping
        )
        model: Any = self.hf
        info, _ = convert_and_load_state_dict_in_model(model, self._merged[name], config)
        filled: nn.Parameter = model.get_parameter(name)
        faults = [*info.conversion_errors.values(), *info.mismatched_keys]
        if faults or filled.is_meta:
            raise DataError(
                f"{self.named}: {name} cannot be made of the stored experts "
                f"({next(iter(faults), 'some are missing')}); copy or download the folder again"
            )
        return filled


def weight_files(folder: Path) -> list[Path]:
    """The safetensors that transformers would load; none where the folder has weights of another
    format alone."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    where: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return [folder / name for name in sorted(set(where.values()))]


def shard_ranges(tensor: Tensor) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each dimension of a tensor the runs of whole indices that this process holds, in the
    order of its shard.

    Placements divide from left to right; a strided one takes its chunk of each of ``split_factor``
    parts.
    """
    indices = [torch.arange(size) for size in tensor.shape]
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        assert coordinate is not None, "this process is in the mesh"
        for number, placement in enumerate(tensor.placements):
            if isinstance(placement, Shard | _StridedShard):
                parts = getattr(placement, "split_factor", 1)
                rank, ranks = coordinate[number], mesh.size(number)
                own = indices[placement.dim]
                indices[placement.dim] = torch.cat(
                    [_chunk(part, ranks, rank) for part in own.chunk(parts)]
                )
        shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
        firsts = [int(own[0]) if own.numel() else None for own in indices]
        held = all(
            own.numel() == size and first in (None, start)
            for own, size, first, start in zip(indices, shape, firsts, offset, strict=True)
        )
        assert held, f"{tensor.placements} over {mesh} hold {shape} at {offset}"
    return tuple(tuple(_runs(own)) for own in indices)


def _chunk(indices: Tensor, ranks: int, rank: int) -> Tensor:
    chunks = indices.chunk(ranks)
    return chunks[rank] if rank < len(chunks) else indices[:0]


def _runs(indices: Tensor) -> Iterator[tuple[int, int]]:
    if not indices.numel():
        return
    breaks = torch.nonzero(indices.diff() != 1)[:, 0].tolist()
    firsts = [0, *(one + 1 for one in breaks)]
    for first, last in zip(firsts, [*breaks, indices.numel() - 1], strict=True):
        yield int(indices[first]), int(indices[last]) + 1


def _copy_slices(
    source: StoredTensor | Tensor,
    local: Tensor,
    ranges: Sequence[Sequence[tuple[int, int]]],
    chosen: tuple[slice, ...] = (),
) -> None:
    """Copies the product of the dimensions' runs into ``local``, in pieces of rows."""
    if local.numel() == 0:
        return
    dim = len(chosen)
    if dim == len(ranges):
        local.copy_(source[chosen] if chosen else source[...])
        return
    start = 0
    most = local.shape[dim] if dim else max(1, _PIECE_BYTES * local.shape[0] // local.nbytes)
    for first, last in ranges[dim]:
        for low in range(first, last, most):
            high = min(last, low + most)
            part = local.narrow(dim, start, high - low)
            _copy_slices(source, part, ranges, (*chosen, slice(low, high)))
            start += high - low


def _parameter_like(parameter: nn.Parameter, local: Tensor) -> nn.Parameter:
    if isinstance(parameter, DTensor):
        local = DTensor.from_local(
            local,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    return nn.Parameter(local, requires_grad=parameter.requires_grad)


def _stacks(converter: WeightConverter) -> bool:
    """Whether a conversion only stacks experts along a first dimension of their own, so that a
    shard of it needs whole experts alone."""
    operations: Sequence[Any] = converter.operations
    if not operations or not isinstance(operations[0], MergeModulelist) or operations[0].dim != 0:
        return False
    return all(isinstance(one, Concatenate) and one.dim > 0 for one in operations[1:])


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    shape = one.get_shape()
    if shape != other.get_shape() or not shape:
        return False
    rows = max(1, _PIECE_BYTES * shape[0] // max(1, 4 * torch.Size(shape).numel()))
    return all(
        torch.equal(one[low : low + rows,], other[low : low + rows,])
        for low in range(0, shape[0], rows)
    )
