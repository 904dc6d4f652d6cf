"""Any decoder that transformers can build, as the engine serves it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from agentrl.engines.find import engines_with
from agentrl.engines.torch.kv_cache import KVCache
from agentrl.engines.torch.model import fixed_shapes
from agentrl.engines.torch.model.expert_recorder import ExpertRecorder
from agentrl.engines.torch.model.families import VISION, max_positions
from agentrl.engines.torch.model.folder_names import FolderNames, ParameterGroup
from agentrl.engines.torch.model.image_decoder import decoder_of
from agentrl.engines.torch.model.images import ServedImages
from agentrl.engines.torch.model.quiet import quiet_transformers
from agentrl.engines.torch.model.served_model import ServedModel, WeightPlace
from agentrl.engines.torch.model.transformers_check import prove, require_exact, unserved
from agentrl.engines.torch.model.transformers_decoder import (
    FIXED_ROWS,
    MaskKind,
    TransformersDecoder,
)
from agentrl.engines.weights import num_experts, read_config
from agentrl.errors import EngineError

_log = logging.getLogger(__name__)

_LAYERS = {"full_attention", "sliding_attention"}
_NEEDED = ("position_ids", "attention_mask", "past_key_values", "logits_to_keep")


class TransformersModel(ServedModel):
    """``ServedModel`` by transformers' own forward, with the engine's rows as its cache (the slower
    path).

    Names of weights are those of the folder (``FolderNames``). A tied weight may come under any of
    its names, and the value of a buffer that is saved may be put too.

    Args:
        module: of a causal language model; its output layer is replaced by one in float32.
        device: where it goes.
        tensors: its weights; None where the module has them.
        deterministic: whether the engine is to be exact to the last bit.
        exact: whether it is to compute in fixed shapes, as the trainer does (``fixed_shapes``).
        images: that it is shown; None for a model of text alone.

    Raises:
        EngineError: a model that cannot be served so, by what it lacks, a tensor that is missing,
            unknown or misshapen, or a machine whose products are not exact.
    """

    def __init__(
        self,
        module: Any,
        device: torch.device,
        tensors: Mapping[str, Tensor] | None = None,
        *,
        deterministic: bool,
        exact: bool = False,
        images: ServedImages | None = None,
    ) -> None:
        super().__init__(module.dtype, device)
        self._module = module.to(device).eval().requires_grad_(False)
        config = module.config.get_text_config(decoder=True)
        _refuse_what_cannot_be(module, config, deterministic=deterministic)
        self.kind = module.config.model_type
        self.vocab_size = int(config.vocab_size)
        self.num_heads = int(config.num_attention_heads)
        self.max_positions = max_positions(config) or 1 << 31
        self.images = images
        self._place_parameters()
        saved = module.state_dict()
        self.optional = {
            name: WeightPlace.of(buffer)
            for name, buffer in module.named_buffers()
            if name in saved
        }
        self._head: _FP32Head | None = None
        if self.dtype != torch.float32:
            self._head = _FP32Head(module.get_output_embeddings())
            module.set_output_embeddings(self._head)
        if tensors is None:
            self.renew()
        else:
            self.load(tensors.items())
        shape, self._masks = prove(module, _mask_kinds(config), images)
        recorder = ExpertRecorder(module)
        self.kv_shape = replace(shape, routing=recorder.routing)
        self._recorder = recorder if recorder.routing else None
        if exact:
            self._fix_shapes()
            return
        _log.warning(
            "TorchEngine has no decoder of its own for model_type=%r with this configuration: "
            "transformers' forward is used, which is slower (docs/engines.md)",
            self.kind,
        )

    def _fix_shapes(self) -> None:
        self.exact = True
        self.key_block = fixed_shapes.KEYS
        fixed_shapes.fix_shapes(self._module)
        if self._head is not None:
            self._head.product = fixed_shapes.linear
        self._module.set_attn_implementation(FIXED_ROWS)
        require_exact(self._module, self.kv_shape, self._masks)

    def _place_parameters(self) -> None:
        names = FolderNames(self._module)
        parameters = dict(self._module.named_parameters())
        folder_names: dict[int, str] = {}
        for group in names.groups:
            own = {name: parameters[name] for name in group.parameters}
            if group.is_renamed:
                ((name, parameter),) = zip(group.tensors, own.values(), strict=True)
                folder_names[id(parameter)] = name
                self.places[name] = WeightPlace.of(parameter)
                continue
            made = _Made(names, group, own)
            for name, shape in group.tensors.items():
                self.places[name] = _Part(tuple(shape), name, made)
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            if id(parameter) in folder_names:
                self.aliases[names.renamed(name)] = folder_names[id(parameter)]

    def forward_over(self, kv: KVCache) -> TransformersDecoder:
        """See ``ServedModel``."""
        return decoder_of(self._module, kv, self._masks, self._recorder, self.images)

    def renew(self) -> None:
        """See ``ServedModel``."""
        if self._head is not None:
            self._head.renew()
        if self.images is not None:
            self.images.renew()


def folder_module(folder: Path, dtype: torch.dtype) -> Any:
    """The model of a Hugging Face folder.

    Raises:
        EngineError: transformers cannot read it, or it lacks weights.
    """
    with quiet_transformers(), _built(f"EnginePlace.model={str(folder)!r}"):
        module, found = _kind_of_model(read_config(folder)).from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    if missing := sorted(found["missing_keys"]):
        raise EngineError(
            f"EnginePlace.model: {folder} lacks {len(missing)} weights of the model, the "
            f"first is {missing[0]!r}; save the model again with save_pretrained",
            retryable=False,
        )
    return module


def config_module(config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """The model that a configuration describes, with weights that are to be put.

    Raises:
        EngineError: transformers cannot build it.
    """
    with _built(f"model_type={config.get('model_type')!r}"):
        return _kind_of_model(config).from_config(hugging_face_config(config), dtype=dtype)


def hugging_face_config(config: Mapping[str, Any]) -> Any:
    """A ``config.json`` as transformers reads it, which knows older spellings too.

    Raises:
        EngineError: transformers knows no such model.
    """
    values = dict(config)
    kind = values.pop("model_type", None)
    with _built(f"model_type={kind!r}"):
        return AutoConfig.for_model(kind, **values)


def _kind_of_model(config: Mapping[str, Any]) -> Any:
    sees = config.get("model_type") in VISION
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


class _Made:
    """Parameters that lie otherwise in the folder; they are made once all its tensors have come.

    Args:
        names: of the model.
        group: of the parameters.
        parameters: by name.
    """

    def __init__(
        self, names: FolderNames, group: ParameterGroup, parameters: Mapping[str, Tensor]
    ) -> None:
        self._names = names
        self._group = group
        self._parameters = parameters
        self._come: dict[str, Tensor] = {}
        self._read: dict[str, Tensor] = {}

    def write(self, name: str, tensor: Tensor) -> None:
        like = next(iter(self._parameters.values()))
        # the sender may use its memory again
        self._come[name] = tensor.to(like.device, like.dtype, copy=True)
        if len(self._come) < len(self._group.tensors):
            return
        for own, made in self._names.convert(self._come).items():
            self._parameters[own].copy_(made)
        self._come.clear()
        self._read.clear()

    def read(self, name: str) -> Tensor:
        # all tensors are made together, and each is asked for once
        if name not in self._read:
            self._read = self._names.revert(self._group, self._parameters)
        return self._read.pop(name)


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a tensor goes that others make a parameter with."""

    shape: tuple[int, ...]
    name: str
    made: _Made

    def write(self, tensor: Tensor) -> None:
        self.made.write(self.name, tensor)

    def read(self) -> Tensor:
        return self.made.read(self.name)


class _FP32Head(nn.Module):
    """The output layer in float32: a bf16 result would round logprobs by up to 2**-9 of a logit."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        # in a tuple, so that they are not this module's parameters
        self._source = (
            source.weight,
            source.bias,
        )
        self.product: Callable[..., Tensor] = nn.functional.linear
        self.renew()

    def renew(self) -> None:
        """After the weights have changed."""
        weight, bias = self._source
        self._values = weight.float(), None if bias is None else bias.float()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.product(hidden.float(), *self._values)


def _mask_kinds(config: Any) -> tuple[MaskKind, ...]:
    """The forms that a family's masks may have, the likeliest first."""
    layers = set(getattr(config, "layer_types", None) or ())
    if layers:
        return ("by_layer", "full" if layers == {"full_attention"} else "sliding")
    return ("sliding",) if getattr(config, "sliding_window", None) else ("full",)


def _refuse_what_cannot_be(module: Any, config: Any, *, deterministic: bool) -> None:
    accepted = inspect.signature(module.forward).parameters
    lacking = [name for name in _NEEDED if name not in accepted]
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYERS)
    output = module.get_output_embeddings()
    cause = ""
    if lacking:
        cause = f"its forward takes no {', '.join(lacking)}"
    elif other:
        cause = f"it has layers of type {', '.join(other)}; served are {sorted(_LAYERS)}"
    elif module.dtype != torch.float32 and not isinstance(output, nn.Linear):
        cause = f"its output layer is {type(output).__name__}, not Linear"
    if cause:
        raise unserved(config.model_type, cause)
    if not deterministic:
        return
    if num_experts(config.to_dict()):
        cause = "a mixture of experts has not (its tokens are shared out among them)"
    elif module.config.model_type in VISION:
        cause = "a model that sees has not (its tower computes each image in its own size)"
    if cause:
        raise EngineError(
            f"EnginePlace.deterministic needs forward passes of fixed shapes, which {cause}, got "
            f"{module.config.model_type!r}; choose a dense model of text alone, or set "
            "EnginePlace.deterministic=false",
            retryable=False,
        )


@contextmanager
def _built(what: str) -> Iterator[None]:
    """Turns transformers' own refusals into ours."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise EngineError(
            f"transformers cannot build a causal language model for {what}: {error}; "
            f"choose another model, or the engine {engines_with('returns_ids', 'transport')}",
            retryable=False,
        ) from error
