"""LoRA targets: which layers of a model get an adapter, and the factors that it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.engines.weights import weights_digest
from agentrl.training.models.lora import Lora, factor_shapes
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.names import torch_dtype
from agentrl.training.models.packed_model import ModelSpec, PackedModel
from agentrl.training.models.peft_folder import (
    AdapterRecord,
    check_unquantised,
    is_named,
    read_peft,
    read_peft_config,
)

_ALPHA = 32.0
"""With which the best learning rate hardly depends on the rank
(https://thinkingmachines.ai/blog/lora/)."""

_Layers = Mapping[str, tuple[nn.Module, Tensor]]
"""What may have an adapter, and its weight, by name: of experts the stack's, of others the
layer's."""


def open_lora(spec: ModelSpec, own: LoraSpec, model: PackedModel, *, whole_head: bool) -> Lora:
    """The adapters of a model that is not divided yet.

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
    head = model.head if whole_head else None
    layers = _layers(model.hf, head)
    rank, alpha, chosen = own.rank, own.alpha or _ALPHA, _chosen(own, model, layers)
    where = f"{type(own).__name__}.path={own.path!r}"
    if own.path is not None:
        config = read_peft_config(Path(own.path), where, heads=whole_head)
        found = config.chosen(layers)
        for name, given, theirs in (
            ("rank", rank, config.rank),
            ("alpha", own.alpha, config.alpha),
            ("targets", own.targets and chosen, found),
        ):
            if given and given != theirs:
                raise own.broken(
                    name,
                    f" must be that of the adapter that training goes on from, {theirs!r} in "
                    f"{where}, got {given!r}; leave it out",
                )
        rank, alpha, chosen = config.rank, config.alpha, found
    assert rank is not None, "a specification without both is none"
    stacks = tuple(name for name in chosen if layers[name][1].ndim == 3)
    record = AdapterRecord(
        rank=rank,
        alpha=alpha,
        layers=tuple(name for name in chosen if name not in stacks),
        embeddings=tuple(name for name in chosen if isinstance(layers[name][0], nn.Embedding)),
        stacks=stacks,
        whole=tuple(
            name
            for name, one in model.hf.named_parameters()
            if head is not None and any(one is other for other in head.parameters())
        ),
        base=str(base.resolve()),
        base_digest=weights_digest(base),
    )
    shapes: dict[str, tuple[int, ...]] = {
        name: tuple(model.hf.get_parameter(name).shape) for name in record.whole
    }
    for weight, (a, b) in record.factors().items():
        layer, stored = layers[weight.removesuffix(".weight")]
        sizes = factor_shapes(layer, stored, rank)
        width = min(sizes["A"][-1], sizes["B"][-2])
        if rank > width:
            raise own.broken(
                "rank",
                f" must be at most {width}, the width of {weight.removesuffix('.weight')}, got "
                f"{rank}; lower it, or leave the layer out of LoraSpec.targets",
            )
        shapes |= {a: sizes["A"], b: sizes["B"]}
    # ``weights_digest`` has refused a folder without safetensors.
    assert model.weights is not None, "a model on meta has its folder's"
    start = (
        _new_factors(record, shapes, spec.lora_seed)
        if own.path is None
        else read_peft(record, Path(own.path), where, shapes, model.weights.whole)
    )
    return Lora(record, start, torch.promote_types(torch_dtype(spec.dtype), torch.float32))


def _layers(hf: nn.Module, head: nn.Module | None) -> _Layers:
    """What of a model may have an adapter; a head that is trained whole has none. Experts of
    gpt-oss are left out, whose stacks hold the matrices' transposes."""
    model: Any = hf
    found: dict[str, tuple[nn.Module, Tensor]] = {}
    for name, module in hf.named_modules():
        is_table = module is model.get_input_embeddings() and type(module) is nn.Embedding
        if is_table or (type(module) is nn.Linear and module is not head):
            found[name] = (module, module.get_parameter("weight"))
        elif type(module).__name__.endswith("Experts"):
            for last, stack in module.named_parameters(recurse=False):
                if stack.ndim == 3 and not getattr(module, "is_transposed", False):
                    found[f"{name}.{last}"] = (module, stack)
    return found


def _chosen(spec: LoraSpec, model: PackedModel, layers: _Layers) -> list[str]:
    """The names that ``targets`` chooses, in the model's order.

    Raises:
        ConfigError: a target is no layer's name, or one of a weight that has two uses.
    """
    if not spec.targets:
        within = {module for block in model.blocks() for module in block.modules()}
        return [name for name, (layer, one) in layers.items() if layer in within and one.ndim == 2]
    for target in spec.targets:
        if not any(is_named(name, [target]) for name in layers):
            known = dict.fromkeys(name.rpartition(".")[2] for name in layers)
            raise spec.broken(
                "targets",
                f" must name layers of the model, got {target!r}, which none is called; it has "
                f"{', '.join(known)}",
            )
    found = [name for name in layers if is_named(name, spec.targets)]
    hf: Any = model.hf
    table, output = hf.get_input_embeddings(), hf.get_output_embeddings()
    for name in found:
        if output is not None and layers[name][1] is table.weight is output.weight:
            raise spec.broken(
                "targets",
                f" must leave {name!r} out, since embedding and output layer of this model share "
                "one weight, and an adapter would part them",
            )
    return found


def _new_factors(
    record: AdapterRecord, shapes: Mapping[str, Sequence[int]], seed: int
) -> dict[str, Tensor]:
    """Factors whose product is 0: one of them is drawn as peft draws it, in an order that no layout
    changes."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for weight, (a, b) in record.factors().items():
        of_embedding = weight.removesuffix(".weight") in record.embeddings
        drawn, zero = (b, a) if of_embedding else (a, b)
        found[zero] = torch.zeros(*shapes[zero])
        found[drawn] = torch.empty(*shapes[drawn])
        if of_embedding:
            found[drawn].normal_(generator=generator)
        else:
            bound = shapes[a][-1] ** -0.5
            found[drawn].uniform_(-bound, bound, generator=generator)
    return found
