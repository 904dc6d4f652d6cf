"""The model's weights in the layout that the decoder multiplies with, addressed by their Hugging
Face names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agentrl.engines.torch.kv_cache import KVCache, KVShape
from agentrl.engines.torch.model.config import DecoderConfig
from agentrl.engines.torch.model.decoder import LayerWeights, NativeDecoder
from agentrl.engines.torch.model.update_tracker import Written
from agentrl.errors import EngineError
from agentrl.types.checksum import tensor_checksum


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a Hugging Face tensor lies: ``view`` has its elements in its order (copies along axis 0
    if ``copies``).
    """

    shape: tuple[int, ...]
    view: Tensor
    copies: bool = False

    def write(self, tensor: Tensor) -> None:
        shape = self.view.shape[1:] if self.copies else self.view.shape
        self.view.copy_(tensor.reshape(shape))

    def read(self) -> Tensor:
        return (self.view[0] if self.copies else self.view).reshape(self.shape)


@dataclass(slots=True)
class DecoderWeights:
    """All weights, their names, and which of them were written since ``begin``."""

    config: DecoderConfig
    dtype: torch.dtype
    device: torch.device
    embedding: Tensor = field(init=False)
    head: Tensor = field(init=False)
    head_fp32: Tensor = field(init=False)
    norm: Tensor = field(init=False)
    layers: list[LayerWeights] = field(init=False)
    _places: dict[str, _Place] = field(init=False, default_factory=dict)
    _written: Written = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.embedding = self._empty(config.vocab_size, config.width)
        self.head = self.embedding if config.tied else self._empty(config.vocab_size, config.width)
        self.norm = self._empty(config.width)
        self._place("model.embed_tokens.weight", self.embedding)
        if not config.tied:
            self._place("lm_head.weight", self.head)
        self._place("model.norm.weight", self.norm)
        self.layers = [self._layer(f"model.layers.{index}.") for index in range(config.num_layers)]
        shapes = {name: tuple(place.shape) for name, place in self._places.items()}
        self._written = Written(shapes, config.architecture)

    @property
    def vocab_size(self) -> int:
        """See ``ServedModel``."""
        return self.config.vocab_size

    @property
    def max_positions(self) -> int:
        """See ``ServedModel``."""
        return self.config.max_positions

    @property
    def num_heads(self) -> int:
        """See ``ServedModel``."""
        return self.config.num_heads

    def empty_rows(self, rows: int, context_tokens: int) -> tuple[KVCache, NativeDecoder]:
        """See ``ServedModel``."""
        shape = KVShape(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim)
        kv = KVCache(shape, rows, context_tokens, self.dtype, self.device)
        return kv, NativeDecoder(self, kv)

    @property
    def names(self) -> tuple[str, ...]:
        """Every Hugging Face name that an update must put, in the model's order."""
        return tuple(self._places)

    def begin(self) -> None:
        """Starts an update: nothing counts as written."""
        self._written.begin()

    @property
    def touched(self) -> bool:
        """Whether anything was written since ``begin``."""
        return self._written.touched

    def put(self, name: str, tensor: Tensor) -> None:
        """Copies one whole tensor into its place, cast to the served dtype.

        A tied model's ``lm_head.weight`` is its embedding under another name and goes there.

        Raises:
            EngineError: an unknown name, or another shape.
        """
        if self.config.tied and name == "lm_head.weight":
            name = "model.embed_tokens.weight"
        self._written.note(name, tuple(tensor.shape))
        self._places[name].write(tensor)

    def finish(self) -> None:
        """Ends an update.

        Raises:
            EngineError: a tensor was not written.
        """
        self._written.require_all()
        # Logits are always computed in fp32: a bf16 result would round logprobs by up to 2**-9 of a
        # logit.
        self.head_fp32 = self.head.float()

    def checksum(self) -> dict[str, int]:
        """The checksum of each tensor in the served dtype and Hugging Face order."""
        return {name: bits_checksum(place.read()) for name, place in self._places.items()}

    def _empty(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _place(
        self, name: str, view: Tensor, shape: tuple[int, ...] | None = None, *, copies: bool = False
    ) -> None:
        self._places[name] = _Place(tuple(view.shape) if shape is None else shape, view, copies)

    def _layer(self, prefix: str) -> LayerWeights:
        config = self.config
        D = config.width
        E = config.head_dim
        F = config.ffn_width
        H = config.num_heads
        K = config.num_kv_heads
        layer = LayerWeights(
            qkv=self._empty((H + 2 * K) * E, D),
            output=self._empty(D, H * E),
            gate_up=self._empty(2 * F, D),
            down=self._empty(D, F),
            attention_norm=self._empty(D),
            ffn_norm=self._empty(D),
            qkv_bias=self._empty((H + 2 * K) * E) if config.qkv_bias else None,
            output_bias=self._empty(D) if config.output_bias else None,
            gate_up_bias=self._empty(2 * F) if config.mlp_bias else None,
            down_bias=self._empty(D) if config.mlp_bias else None,
            qk_norm=self._empty(H + K, E) if config.qk_norm else None,
        )
        attention = prefix + "self_attn."
        mlp = prefix + "mlp."
        for fused, suffix in ((layer.qkv, "weight"), (layer.qkv_bias, "bias")):
            if fused is not None:
                tail = tuple(fused.shape[1:])
                self._place(
                    f"{attention}q_proj.{suffix}", _interleaved(fused[: H * E], H), (H * E, *tail)
                )
                keys = fused[H * E : (H + K) * E]
                self._place(f"{attention}k_proj.{suffix}", _interleaved(keys, K), (K * E, *tail))
                self._place(f"{attention}v_proj.{suffix}", fused[(H + K) * E :])
        if layer.qk_norm is not None:
            gains = layer.qk_norm.view(H + K, E // 2, 2).transpose(1, 2)
            self._place(f"{attention}q_norm.weight", gains[:H], (E,), copies=True)
            self._place(f"{attention}k_norm.weight", gains[H:], (E,), copies=True)
        for fused, suffix in ((layer.gate_up, "weight"), (layer.gate_up_bias, "bias")):
            if fused is not None:
                self._place(f"{mlp}gate_proj.{suffix}", fused[:F])
                self._place(f"{mlp}up_proj.{suffix}", fused[F:])
        single = {
            f"{attention}o_proj.weight": layer.output,
            f"{attention}o_proj.bias": layer.output_bias,
            f"{mlp}down_proj.weight": layer.down,
            f"{mlp}down_proj.bias": layer.down_bias,
            f"{prefix}input_layernorm.weight": layer.attention_norm,
            f"{prefix}post_attention_layernorm.weight": layer.ffn_norm,
        }
        for name, tensor in single.items():
            if tensor is not None:
                self._place(name, tensor)
        return layer


def _interleaved(fused: Tensor, heads: int) -> Tensor:
    """``[heads, 2, E/2, ...]``: a view in Hugging Face order of rows stored interleaved."""
    return fused.view(heads, -1, 2, *fused.shape[1:]).transpose(1, 2)


def bits_checksum(tensor: Tensor) -> int:
    """``tensor_checksum`` of a float32 or bfloat16 tensor's bits."""
    flat = tensor.contiguous().cpu().view(-1)
    width = flat.element_size()
    signed = flat.view({2: torch.int16, 4: torch.int32}[width]).numpy()
    return tensor_checksum(signed.view({2: np.uint16, 4: np.uint32}[width]))


def folder_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a Hugging Face folder's safetensors files, one tensor in memory at a
    time.

    Raises:
        EngineError: no safetensors file, or an index that names a missing one.
    """
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(
            {folder / name for name in json.loads(index.read_text())["weight_map"].values()}
        )
    else:
        files = sorted(folder.glob("*.safetensors"))
    absent = [file.name for file in files if not file.is_file()]
    if not files or absent:
        what = f"lacks {absent[0]}" if absent else "holds no *.safetensors file"
        raise EngineError(
            f"EnginePlace.model_path: {folder} {what}; save the model with "
            "save_pretrained(safe_serialization=True)",
            retryable=False,
        )
    for file in files:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (safe_open is no mapping)
                yield name, tensors.get_tensor(name)
