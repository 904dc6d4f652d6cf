"""Any decoder that transformers can build, as the engine serves it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from agentrl.engines.torch.kv_cache import KVCache, KVShape
from agentrl.engines.torch.model.transformers_check import prove, unserved
from agentrl.engines.torch.model.transformers_decoder import MaskKind, Masks, TransformersDecoder
from agentrl.engines.torch.model.update_tracker import Written
from agentrl.engines.torch.model.weights import bits_checksum
from agentrl.errors import EngineError

_log = logging.getLogger(__name__)

_LAYERS = {"full_attention", "sliding_attention"}
_NEEDED = ("position_ids", "attention_mask", "past_key_values", "logits_to_keep")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


class TransformersModel:
    """``ServedModel`` by transformers' own forward, with the engine's rows as its cache (the slower
    path).

    Args:
        module: of a causal language model, with its weights; its output layer is replaced by one in
            float32.
        device: where it goes.
        deterministic: whether the engine is to be exact to the last bit.

    Raises:
        EngineError: a model that cannot be served so, by what it lacks.
    """

    def __init__(self, module: Any, device: torch.device, *, deterministic: bool) -> None:
        self._module = module.to(device).eval().requires_grad_(False)
        config = self._module.config.get_text_config(decoder=True)
        self._config = config
        _refuse_what_cannot_be(self._module, deterministic=deterministic)
        self.vocab_size = int(config.vocab_size)
        self.num_heads = int(config.num_attention_heads)
        self.max_positions = _positions(config)
        self.device = device
        self.dtype: torch.dtype = self._module.dtype
        self._parameters = dict(self._module.named_parameters())
        self._aliases, self._buffers = _other_names(self._module, self._parameters)
        self._written = Written(
            _shapes(self._parameters), self._config.model_type, optional=_shapes(self._buffers)
        )
        self._head = None if self.dtype == torch.float32 else _FP32Head.of(self._module)
        self._shape: KVShape | None = None
        self._masks: Masks | None = None

    @classmethod
    def from_folder(
        cls, folder: Path, dtype: torch.dtype, device: torch.device, *, deterministic: bool
    ) -> TransformersModel:
        """Reads a Hugging Face folder.

        Raises:
            EngineError: transformers cannot read it, or it lacks weights.
        """
        with _quiet_transformers():
            module, found = _built(
                f"EnginePlace.model_path={str(folder)!r}",
                lambda: AutoModelForCausalLM.from_pretrained(
                    folder, dtype=dtype, local_files_only=True, output_loading_info=True
                ),
            )
        if missing := sorted(found["missing_keys"]):
            raise EngineError(
                f"EnginePlace.model_path: {folder} lacks {len(missing)} weights of the model, the "
                f"first is {missing[0]!r}; save the model again with save_pretrained",
                retryable=False,
            )
        model = cls(module, device, deterministic=deterministic)
        model._prove()
        return model

    @classmethod
    def from_tensors(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
        *,
        deterministic: bool,
    ) -> TransformersModel:
        """Builds what ``config`` says and puts ``tensors`` in.

        Raises:
            EngineError: transformers cannot build it, or a tensor is missing, unknown or misshapen.
        """
        values = dict(config)
        kind = values.pop("model_type", None)
        module = _built(
            f"model_type={kind!r}",
            lambda: AutoModelForCausalLM.from_config(
                AutoConfig.for_model(kind, **values), dtype=dtype
            ),
        )
        model = cls(module, device, deterministic=deterministic)
        for name, tensor in tensors.items():
            model.put(name, tensor)
        model.finish()
        model._prove()
        return model

    @property
    def touched(self) -> bool:
        """See ``ServedModel``."""
        return self._written.touched

    def begin(self) -> None:
        """See ``ServedModel``."""
        self._written.begin()

    def put(self, name: str, tensor: Tensor) -> None:
        """See ``ServedModel``. Names are those of the module's parameters; a tied weight may come
        under any of its names, and a buffer's value may be sent too."""
        name = self._aliases.get(name, name)
        self._written.note(name, tuple(tensor.shape))
        place = self._parameters[name] if name in self._parameters else self._buffers[name]
        place.copy_(tensor)

    def finish(self) -> None:
        """See ``ServedModel``."""
        self._written.require_all()
        if self._head is not None:
            self._head.renew()

    def checksum(self) -> dict[str, int]:
        """See ``ServedModel``."""
        return {name: bits_checksum(parameter) for name, parameter in self._parameters.items()}

    def empty_rows(self, rows: int, context_tokens: int) -> tuple[KVCache, TransformersDecoder]:
        """See ``ServedModel``."""
        assert self._shape is not None
        assert self._masks is not None
        kv = KVCache(self._shape, rows, context_tokens, self.dtype, self.device)
        return kv, TransformersDecoder(self._module, kv, self._masks)

    def _prove(self) -> None:
        """Learns how its rows are to be kept and masked; see ``transformers_proof``."""
        if self._head is not None:
            self._head.renew()
        self._shape, self._masks = prove(self._module, _mask_kinds(self._config))
        _log.warning(
            "TorchEngine has no decoder of its own for model_type=%r with this configuration: "
            "transformers' forward is used, which is slower (docs/engines.md)",
            self._config.model_type,
        )


class _FP32Head(nn.Module):
    """The output layer in float32: a bf16 result would round logprobs by up to 2**-9 of a logit."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        # in a tuple, so that they are not this module's parameters
        self._source = (
            source.weight,
            source.bias,
        )
        self.renew()

    @classmethod
    def of(cls, module: Any) -> _FP32Head:
        """Takes the place of a model's output layer."""
        source = module.get_output_embeddings()
        if not isinstance(source, nn.Linear):
            raise unserved(
                module.config.model_type, f"its output layer is {type(source).__name__}, not Linear"
            )
        head = cls(source)
        module.set_output_embeddings(head)
        return head

    def renew(self) -> None:
        """After the weights have changed."""
        weight, bias = self._source
        self._values = weight.float(), None if bias is None else bias.float()

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden.float(), *self._values)


def _mask_kinds(config: Any) -> tuple[MaskKind, ...]:
    """The forms that a family's masks may have, the likeliest first."""
    layers = set(getattr(config, "layer_types", None) or ())
    sliding = bool(getattr(config, "sliding_window", None))
    if layers:
        return ("by_layer", "full" if layers == {"full_attention"} else "sliding")
    return ("sliding",) if sliding else ("full",)


def _refuse_what_cannot_be(module: Any, *, deterministic: bool) -> None:
    config = module.config.get_text_config(decoder=True)
    accepted = inspect.signature(module.forward).parameters
    lacking = [name for name in _NEEDED if name not in accepted]
    if lacking:
        raise unserved(config.model_type, f"its forward takes no {', '.join(lacking)}")
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYERS)
    if other:
        raise unserved(
            config.model_type,
            f"it has layers of type {', '.join(other)}; served are {sorted(_LAYERS)}",
        )
    if deterministic and any(getattr(config, name, 0) for name in _EXPERTS):
        raise unserved(
            config.model_type,
            "run.deterministic needs forward passes of fixed shapes, but its tokens are shared out "
            "among experts",
        )


def _positions(config: Any) -> int:
    """The longest sequence: rotary scalings that follow the longest sequence of a batch are not
    scaled here.
    """
    longest = int(getattr(config, "max_position_embeddings", None) or 1 << 31)
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    for scaling in kinds:
        if scaling.get("rope_type") in ("dynamic", "longrope"):
            longest = min(longest, int(scaling.get("original_max_position_embeddings") or longest))
    return longest


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _other_names(
    module: Any, parameters: Mapping[str, Tensor]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Second names of tied parameters, and the buffers that are saved with the model."""
    first = {id(parameter): name for name, parameter in parameters.items()}
    aliases = {
        name: first[id(parameter)]
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    saved = module.state_dict()
    return aliases, {name: buffer for name, buffer in module.named_buffers() if name in saved}


def _built(what: str, build: Callable[[], Any]) -> Any:
    """What ``build`` returns, with transformers' own refusals turned into ours."""
    try:
        return build()
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise EngineError(
            f"transformers cannot build a causal language model for {what}: {error}; "
            "choose another model, or rollout.engine=sglang",
            retryable=False,
        ) from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keeps transformers' progress bars and table of missing weights off the terminal; what is
    missing is an error.
    """
    shown = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if shown:
            transformers_logging.enable_progress_bar()
