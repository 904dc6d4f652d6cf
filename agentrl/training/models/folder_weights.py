"""Folder weights: a model's weights in a Hugging Face folder, of which a process reads its shards.

- A model is built on ``meta``, sharded there, and filled: every process reads the slices that its
  DTensors hold, whatever their placements, and casts them in pieces. None holds the whole model.
- Names follow transformers' conversion, which also makes the parameters that lie otherwise in the
  folder (``FolderNames``). Of stacked experts a process reads its own, of others the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from agentrl.engines.torch.model.folder_names import FolderNames, ParameterGroup
from agentrl.errors import ConfigError, DataError
from agentrl.training.parallel.shards import divided_as, local, offset

_PIECE_BYTES = 2**25
"""Of a slice, read and cast at once."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""First and last + 1 of each dimension."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, read by slices.

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
        new: values of weights by name, whole, which ``fill`` takes its slices of in place of stored
            ones.
        read: the ranges that were read, by stored name.
        names: of the weights in the folder.

    Raises:
        ConfigError: the weights cannot be written back under the folder's names.
        DataError: a file of the folder is cut.
    """

    hf: nn.Module
    folder: Path
    named: str
    missing: frozenset[str] = field(init=False)
    new: dict[str, Tensor] = field(init=False, default_factory=dict)
    read: dict[str, list[Ranges]] = field(init=False, default_factory=dict)
    names: FolderNames = field(init=False)

    def __post_init__(self) -> None:
        self._copied: dict[str, StoredTensor] = {}
        """Stored tensors by the name of their weight."""
        self._parts: dict[str, dict[str, StoredTensor]] = {}
        """Those that are converted, by the name of the first weight that they make, and their
        own."""
        self._made: dict[str, Tensor] = {}
        """Weights that were made beside another and wait for their turn."""
        model: Any = self.hf
        known = model.state_dict()
        self._find_stored(known)
        self._untie_unequal()
        self.names = names_of(model, self.named)
        self._converted = {
            name: group
            for group in self.names.groups
            if not group.is_renamed
            for name in group.parameters
        }
        self._check_names()
        found = self._copied.keys() | {
            name
            for name, group in self._converted.items()
            if not self._parts.keys().isdisjoint(group.parameters)
        }
        absent = known.keys() - found
        for one, other in model.all_tied_weights_keys.items():
            if {one, other} & found:
                absent -= {one, other}
        ignored = [re.compile(one) for one in model._keys_to_ignore_on_load_missing or ()]
        self.missing = frozenset(
            name for name in absent if not any(one.search(name) for one in ignored)
        )

    def _find_stored(self, known: Mapping[str, Tensor]) -> None:
        """Finds the weight of each stored tensor, and which conversions that takes."""
        model: Any = self.hf
        mapping = get_model_conversion_mapping(model)
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        prefix = model.base_model_prefix
        for key, stored in sorted(
            self._stored(), key=lambda pair: dot_natural_key(pair[0])
        ):
            name, pattern = rename_source_key(key, renamings, converters, prefix, known)
            if name not in known and key in known:
                name, pattern = rename_source_key(key, [], [], prefix, known)
            if name not in known:
                continue
            if pattern is None:
                self._copied[name] = stored
            else:
                self._parts.setdefault(name, {})[key] = stored
        model._weight_conversions = [one for one in mapping if one.was_used()]

    def _check_names(self) -> None:
        """What is published has the names of the folder, which may lack the prefix of the trunk."""
        model: Any = self.hf
        prefix = f"{model.base_model_prefix}."
        for group in self.names.groups:
            stored = [
                self._copied[name].key for name in group.parameters if name in self._copied
            ]
            for name in group.parameters:
                stored += self._parts.get(name, ())
            bare = {name.removeprefix(prefix) for name in group.tensors}
            for key in stored:
                if key.removeprefix(prefix) not in bare:
                    raise ConfigError(
                        f"{self.named}: transformers reads {key} as {group.parameters[0]}, and "
                        f"would write it as {next(iter(group.tensors))}, so that no engine could "
                        "be updated; choose another family"
                    )

    def _stored(self) -> Iterator[tuple[str, StoredTensor]]:
        for path in weight_files(self.folder):
            file: Any = _opened(path, self.named)
            # A file is no mapping.
            for key in file.keys():  # noqa: SIM118
                yield key, StoredTensor(file, key, self.read)

    def _untie_unequal(self) -> None:
        """Weights that the configuration ties, and the folder holds with different values, are two,
        as in transformers."""
        model: Any = self.hf
        for target, source in list(model.all_tied_weights_keys.items()):
            both = [self._copied.get(name) for name in (target, source)]
            # A folder that holds one of the two, or the same numbers twice, has them tied.
            if None in both or _equal(*both):  # type: ignore[arg-type]
                continue
            model.all_tied_weights_keys.pop(target)
            module, last = _place(model, target)
            setattr(
                module, last, nn.Parameter(torch.empty_like(model.get_parameter(target)))
            )

    @torch.no_grad()
    def fill(self, device: torch.device) -> None:
        """Gives the model its weights on ``device``: of a DTensor this process's shard.

        Raises:
            DataError: a stored tensor has another shape than its weight, or cannot be read.
        """
        model: Any = self.hf
        names: dict[nn.Parameter, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(name)
        for parameter, own in names.items():
            filled = self._filled(own, parameter, device)
            for name in own:
                module, last = _place(model, name)
                module._parameters[last] = filled
        for name, buffer in model.named_buffers():
            if name in self._copied:
                module, last = _place(model, name)
                module._buffers[last] = self._copied[name][...].to(device, buffer.dtype)
        self._copied.clear()
        self._parts.clear()

    def whole(self, name: str) -> Tensor:
        """A weight of the model, or a buffer that the folder holds, on the CPU; it may be read
        again.

        Raises:
            DataError: as ``fill``.
        """
        model: Any = self.hf
        if name not in dict(model.named_parameters()):
            return self._copied[name][...]
        parameter = model.get_parameter(name)
        tied = model.named_parameters(remove_duplicate=False)
        names = [own for own, other in tied if other is parameter]
        return self._filled(names, parameter, torch.device("cpu")).detach()

    def _filled(
        self, names: Sequence[str], parameter: nn.Parameter, device: torch.device
    ) -> nn.Parameter:
        own = local(parameter)
        part = torch.empty(own.shape, dtype=own.dtype, device=device)
        ranges = shard_ranges(parameter)
        if names[0] in self._converted and names[0] not in self.new:
            self._make_of_parts(names[0], part, ranges)
        else:
            _copy_slices(self._source(names, parameter), part, ranges)
        return nn.Parameter(
            divided_as(parameter, part), requires_grad=parameter.requires_grad
        )

    def _source(
        self, names: Sequence[str], parameter: nn.Parameter
    ) -> StoredTensor | Tensor:
        """What a weight is copied from, by any of its names."""
        new = next((self.new[name] for name in names if name in self.new), None)
        if new is not None:
            return new
        source = next((self._copied[name] for name in names if name in self._copied), None)
        if source is None:
            raise DataError(f"{self.named} lacks {names[0]!r}")
        if tuple(source.get_shape()) != tuple(parameter.shape):
            raise DataError(
                f"{self.named}: {source.key} has shape {source.get_shape()} and config.json says "
                f"{list(parameter.shape)}; copy or download the folder again"
            )
        return source

    def _make_of_parts(self, name: str, part: Tensor, ranges: Sequence[Ranges]) -> None:
        """Fills this process's part of a weight that lies otherwise in the folder, by transformers'
        conversion."""
        group = self._converted[name]
        if group.experts is None:
            if name not in self._made:
                self._made |= self._convert(group, list(group.tensors))
            _copy_slices(self._made.pop(name), part, ranges)
        elif part.numel():
            ((first, stop),) = ranges[0]
            own = self._convert(group, group.of_experts(first, stop))[name]
            _copy_slices(own, part, [((0, stop - first),), *ranges[1:]])

    def _convert(self, group: ParameterGroup, wanted: Sequence[str]) -> dict[str, Tensor]:
        """The weights that some stored tensors make.

        Raises:
            DataError: one is missing, or has another shape than it makes.
        """
        stored = next(
            (self._parts[name] for name in group.parameters if name in self._parts), None
        )
        model: Any = self.hf
        prefix = f"{model.base_model_prefix}."
        bare = {key.removeprefix(prefix): one for key, one in (stored or {}).items()}
        tensors: dict[str, Tensor] = {}
        for name in wanted:
            source = bare.get(name.removeprefix(prefix))
            if source is None or tuple(source.get_shape()) != tuple(group.tensors[name]):
                found = (
                    "is missing" if source is None else f"has shape {source.get_shape()}"
                )
                raise DataError(
                    f"{self.named}: {group.parameters[0]} is made of {name}, which {found}; "
                    "copy or download the folder again"
                )
            tensors[name] = source[...]
        return self.names.convert(tensors)


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a parameter or buffer, and what it is called there."""
    parent, _, last = name.rpartition(".")
    return model.get_submodule(parent), last


def _opened(path: Path, named: str) -> Any:
    """A file of weights, whose size safetensors compares with its header.

    Raises:
        DataError: it is cut.
    """
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise DataError(
            f"{named}: {path.name} is cut or no safetensors file ({error}): it has "
            f"{path.stat().st_size} bytes; copy or download it again"
        ) from error


def names_of(hf: nn.Module, named: str) -> FolderNames:
    """The table of a model's names.

    Raises:
        ConfigError: transformers has no way back to them.
    """
    try:
        return FolderNames(hf)
    except ValueError as error:
        raise ConfigError(f"{named}: {error}; choose another family") from error


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
        starts, shape = offset(tensor), local(tensor).shape
        held = all(
            own.numel() == size and (not size or int(own[0]) == start)
            for own, size, start in zip(indices, shape, starts, strict=True)
        )
        assert held, f"{tensor.placements} over {mesh} hold {shape} at {starts}"
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
    target: Tensor,
    ranges: Sequence[Sequence[tuple[int, int]]],
    chosen: tuple[slice, ...] = (),
) -> None:
    """Copies the product of the dimensions' runs into ``target``, in pieces of rows."""
    if target.numel() == 0:
        return
    dim = len(chosen)
    if dim == len(ranges):
        target.copy_(source[chosen] if chosen else source[...])
        return
    start = 0
    most = (
        target.shape[dim]
        if dim
        else max(1, _PIECE_BYTES * target.shape[0] // target.nbytes)
    )
    for first, last in ranges[dim]:
        for low in range(first, last, most):
            high = min(last, low + most)
            part = target.narrow(dim, start, high - low)
            _copy_slices(source, part, ranges, (*chosen, slice(low, high)))
            start += high - low


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    shape = one.get_shape()
    if shape != other.get_shape() or not shape:
        return False
    rows = max(1, _PIECE_BYTES * shape[0] // max(1, 4 * torch.Size(shape).numel()))
    return all(
        torch.equal(one[low : low + rows,], other[low : low + rows,])
        for low in range(0, shape[0], rows)
    )
