"""Folder names: what a model's parameters are called in its Hugging Face folder, and how they lie
there.

transformers keeps some of them in another form than the folder does: experts as one stack, several
projections as one. Its own conversion tells the form, in both directions. Trainer, engines and
exports speak the folder's names alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    PrefixChange,
    SplitModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that are converted together; most are one by itself.

    Args:
        parameters: their names in the model.
        tensors: the shapes of what they are in the folder, by name; of experts all of one
            projection, then all of the next.
        is_renamed: whether the one parameter is the one tensor.
        experts: how many a parameter stacks along its first dimension; None for another form.
    """

    parameters: tuple[str, ...]
    tensors: Mapping[str, torch.Size]
    is_renamed: bool
    experts: int | None

    def of_experts(self, first: int, stop: int) -> list[str]:
        """The tensors of some experts, in the order of ``tensors``."""
        assert self.experts is not None
        return [
            name
            for number, name in enumerate(self.tensors)
            if first <= number % self.experts < stop
        ]


class FolderNames:
    """The table of a model's names.

    Args:
        model: of transformers. The conversions that its folder was read by are those of its
            ``_weight_conversions``; without them they are those by which transformers saves it.

    Attributes:
        groups: all parameters, a tied one once, in the model's order.

    Raises:
        ValueError: transformers cannot revert a conversion of the model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        if getattr(model, "_weight_conversions", None) is None:
            # a prefix that folders may have or lack is not added
            model._weight_conversions = [
                one
                for one in get_model_conversion_mapping(model, add_legacy=False)
                if not isinstance(one, PrefixChange)
            ]
        try:
            reverse = [one.reverse_transform() for one in model._weight_conversions[::-1]]
            self._renamings, self._converters = _kinds(model._weight_conversions)
            self._back, back_converters = _kinds(reverse)
            self.groups = self._groups(back_converters)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"transformers cannot write the weights of {type(model).__name__} as their folder "
                f"holds them ({error!r})"
            ) from error

    def renamed(self, name: str) -> str:
        """What a parameter that lies in the folder as it is here is called there."""
        found: str = rename_source_key(name, self._back, [])[0]
        return found

    def group_of_one(self, name: str, shape: torch.Size) -> ParameterGroup:
        """A parameter or buffer that lies in the folder as it is here."""
        return ParameterGroup(
            (name,), {self.renamed(name): shape}, is_renamed=True, experts=None
        )

    def _groups(self, converters: list[WeightConverter]) -> tuple[ParameterGroup, ...]:
        operations = {
            one: found.operations for found in converters for one in found.source_patterns
        }
        members: dict[str, tuple[str | None, dict[str, Tensor]]] = {}
        for name, parameter in self._model.named_parameters():
            key, pattern = rename_source_key(name, [], converters)
            like = torch.empty(parameter.shape, device="meta")
            members.setdefault(key, (pattern, {}))[1][name] = like
        groups = []
        for pattern, tensors in members.values():
            names = tuple(tensors)
            if pattern is None:
                groups.append(self.group_of_one(names[0], tensors[names[0]].shape))
                continue
            experts = (
                tensors[names[0]].shape[0] if _splits_a_stack(operations[pattern]) else None
            )
            made = self._reverted(tensors)
            shapes = {name: tensor.shape for name, tensor in made.items()}
            groups.append(ParameterGroup(names, shapes, is_renamed=False, experts=experts))
        return tuple(groups)

    def revert(
        self, group: ParameterGroup, parameters: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The folder's tensors of a group's whole parameters, by name."""
        if group.is_renamed:
            return dict(zip(group.tensors, parameters.values(), strict=True))
        return self._reverted(parameters)

    def revert_experts(
        self, group: ParameterGroup, stack: Tensor, first: int
    ) -> dict[str, Tensor]:
        """The folder's tensors of a part of a stack, by name.

        Args:
            group: of a stack.
            stack: whole experts, at least one.
            first: the number of the first of them.
        """
        made = self._reverted({group.parameters[0]: stack})
        names = group.of_experts(first, first + stack.shape[0])
        return dict(zip(names, made.values(), strict=True))

    def convert(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters of a group, of its tensors in the folder; of a stack's experts that part.

        Raises:
            RuntimeError: a tensor has another shape than its neighbours.
        """
        by_pattern = {
            one: found for found in self._converters for one in found.source_patterns
        }
        made: dict[str, WeightConverter] = {}
        for key in sorted(tensors, key=dot_natural_key):
            name, pattern = rename_source_key(key, self._renamings, self._converters)
            converter = made.setdefault(name, deepcopy(by_pattern[pattern]))
            converter.add_tensor(name, key, pattern, tensors[key])
        found: dict[str, Tensor] = {}
        for name, converter in made.items():
            found |= converter.convert(name, model=self._model, config=self._model.config)
        return {name: _single(value) for name, value in found.items()}

    def _reverted(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        reverted: dict[str, Tensor] = revert_weight_conversion(
            self._model, dict(parameters)
        )
        return reverted


def _kinds(mapping: list[Any]) -> tuple[list[WeightRenaming], list[WeightConverter]]:
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    return renamings, [one for one in mapping if isinstance(one, WeightConverter)]


def _splits_a_stack(operations: list[Any]) -> bool:
    """Whether the way back only takes a stack of experts apart along its first dimension, so that a
    part of it needs whole experts alone."""
    *others, last = operations
    is_stack = isinstance(last, SplitModulelist) and last.dim == 0
    return is_stack and all(isinstance(one, Chunk) and one.dim > 0 for one in others)


def _single(value: Any) -> Tensor:
    single: Tensor = value[0] if isinstance(value, list) else value
    return single
