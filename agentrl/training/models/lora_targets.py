"""LoRA targets: which layers of a model get an adapter, and the factors that it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.engines.weights import weights_digest
from agentrl.errors import DataError
from agentrl.training.models.lora import Lora
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.packed_model import ModelSpec, PackedModel
from agentrl.training.models.peft_folder import (
    AdapterRecord,
    check_unquantised,
    is_target,
    read_peft,
    read_peft_config,
)
from agentrl.training.names import torch_dtype

_ALPHA = 32.0
"""With which the best learning rate hardly depends on the rank
(https://thinkingmachines.ai/blog/lora/)."""


def open_lora(
    spec: ModelSpec, own: LoraSpec, model: PackedModel, *, whole_head: bool
) -> Lora:
    """The adapters of a model that is not divided yet, which is given what they begin with.

    Args:
        spec: of the model.
        own: which are asked for.
        model: on ``meta``.
        whole_head: whether its head is trained whole.

    Raises:
        ConfigError: the model has no such layers, they are narrower than the rank, or it is
            quantised.
        DataError: the base has no safetensors, or the adapter's folder does not fit.
    """
    base = Path(spec.model_path)
    check_unquantised(base, f"{spec.setting}={spec.model_path!r}")
    where = f"{type(own).__name__}.path={own.path!r}"
    layers = _layers(model)
    stacks = _stacks(model)
    if own.path is None:
        assert own.rank is not None, "a specification without both is none"
        rank = own.rank
        alpha = own.alpha or _ALPHA
        chosen = _chosen(own, model, layers, stacks)
        chosen_stacks = [name for name in stacks if is_target(name, own.targets)]
    else:
        rank, alpha, targets, parameters = read_peft_config(Path(own.path), where)
        chosen = [name for name in layers if is_target(name, targets)]
        chosen_stacks = [name for name in stacks if is_target(name, parameters)]
        for one in parameters:
            if not any(is_target(name, [one]) for name in stacks):
                raise DataError(
                    f"{where} has an adapter of the parameter {one!r}, which is no stack of "
                    f"experts of {spec.model_path}; set ActorSpec.model_path to its base"
                )
    table: Any = model.hf.get_input_embeddings()  # type: ignore[operator]
    head = set(model.head.parameters()) if whole_head else ()
    record = AdapterRecord(
        rank=rank,
        alpha=alpha,
        layers=tuple(chosen),
        embedding=next((name for name in chosen if layers[name] is table), None),
        whole=tuple(name for name, one in model.hf.named_parameters() if one in head),
        base=str(base.resolve()),
        base_digest=weights_digest(base),
        stacks=tuple(chosen_stacks),
        transposed=any(one.experts.is_transposed for one in model.mixtures()),
    )
    shapes: dict[str, Sequence[int]] = {}
    for name, pair in record.factors().items():
        size = model.hf.get_parameter(name).shape
        width = min(size[-2:])
        if rank > width:
            raise own.broken(
                "rank",
                f" must be at most {width}, the width of {name.removesuffix('.weight')}, got "
                f"{rank}; lower it, or leave the layer out of LoraSpec.targets",
            )
        shapes |= zip(pair, record.shapes(name, size), strict=True)
    # ``weights_digest`` has refused a folder without safetensors.
    assert model.weights is not None, "a model on meta has its folder's"
    if own.path is None:
        model.weights.new |= _new_factors(record, shapes, spec.lora_seed)
    else:
        shapes |= {name: model.hf.get_parameter(name).shape for name in record.whole}
        model.weights.new |= read_peft(record, Path(own.path), where, shapes)
    return Lora(record, torch.promote_types(torch_dtype(spec.dtype), torch.float32))


def _layers(model: PackedModel) -> dict[str, Any]:
    """What may have an adapter, by name: linear layers but for the head and a tower's, and an
    embedding that shares its weight with none."""
    hf: Any = model.hf
    table = hf.get_input_embeddings()
    tower = set() if model.tower is None else set(model.tower.module.modules())
    return {
        name: module
        for name, module in hf.named_modules()
        if (type(module) is nn.Linear and module is not model.head and module not in tower)
        or (
            module is table
            and type(module) is nn.Embedding
            and module.weight is not getattr(hf.get_output_embeddings(), "weight", None)
        )
    }


def _stacks(model: PackedModel) -> list[str]:
    """The names of stacked experts' matrices; of a family whose mixtures transformers computes
    there are none."""
    names = {module: name for name, module in model.hf.named_modules()}
    return [
        f"{names[mixture.experts]}.{kind}"
        for mixture in model.mixtures()
        for kind, stack in mixture.experts.named_parameters()
        if stack.ndim == 3
    ]


def _chosen(
    spec: LoraSpec,
    model: PackedModel,
    layers: Mapping[str, nn.Module],
    stacks: Sequence[str],
) -> list[str]:
    """The names of layers that ``targets`` chooses, in the model's order.

    Raises:
        ConfigError: a target is no layer's name, or there is none.
    """
    if not spec.targets:
        within = {module for block in model.blocks() for module in block.modules()}
        chosen = [name for name, layer in layers.items() if layer in within]
        if chosen:
            return chosen
        others = [*layers, *stacks]
        remedy = f"name some of {', '.join(others)}, or leave" if others else "leave"
        raise spec.broken(
            "targets",
            f" are by default the linear layers of the blocks, and {type(model.hf).__name__} has "
            f"none; {remedy} LoraSpec out",
        )
    for target in spec.targets:
        if not any(is_target(name, [target]) for name in (*layers, *stacks)):
            known = dict.fromkeys(name.rpartition(".")[2] for name in (*layers, *stacks))
            raise spec.broken(
                "targets",
                f" must name layers that can have an adapter, got {target!r}; they are "
                f"{', '.join(known)} (not the output layer, or an embedding that shares its "
                "weight)",
            )
    return [name for name in layers if is_target(name, spec.targets)]


def _new_factors(
    record: AdapterRecord, shapes: Mapping[str, Sequence[int]], seed: int
) -> dict[str, Tensor]:
    """Factors whose product is 0: one of them is drawn as peft draws it, in an order that no layout
    changes."""
    generator = torch.Generator().manual_seed(seed)
    found = {name: torch.zeros(*shape) for name, shape in shapes.items()}
    for weight, (a, b) in record.factors().items():
        if weight == f"{record.embedding}.weight":
            found[b].normal_(generator=generator)
        else:
            bound = found[a].shape[-1] ** -0.5
            found[a].uniform_(-bound, bound, generator=generator)
    return found
