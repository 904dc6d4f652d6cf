"""From a folder, or a configuration and tensors, to a model that the engine serves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from agentrl.engines.base import EnginePlace
from agentrl.engines.torch.model.config import DecoderConfig, computed
from agentrl.engines.torch.model.served_model import ServedModel
from agentrl.engines.torch.model.weights import DecoderWeights
from agentrl.errors import ConfigError, EngineError


def load_model(
    place: EnginePlace,
    device_name: str,
    config: Mapping[str, Any] | None = None,
    state_dict: Mapping[str, Tensor] | None = None,
) -> ServedModel:
    """The engine's own decoder where it computes the model, else transformers' forward, which is
    slower.

    Args:
        place: names the folder and the dtype.
        device_name: as torch calls it.
        config: instead of the folder's.
        state_dict: instead of the folder's weights.

    Raises:
        ConfigError: the device is not there.
        EngineError: neither can serve it, the folder cannot be read, or weights are missing.
    """
    device = torch.device(device_name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"TorchEngineSpec.device={device_name!r} is not there: torch sees "
            f"{torch.cuda.device_count()} GPUs in this process; set PlacementConfig.device=cpu, or "
            "use "
            "a machine with NVIDIA's driver and a torch that was built for CUDA"
        )
    folder = Path(place.model)
    values = _read_config(folder) if config is None else config
    dtype = getattr(torch, place.dtype)
    if computed(values):
        weights = DecoderWeights(DecoderConfig.from_hugging_face(values), dtype, device)
        weights.load(_folder_tensors(folder) if state_dict is None else state_dict.items())
        return weights
    from agentrl.engines.torch.model.transformers_model import (
        TransformersModel,
        config_module,
        folder_module,
    )

    module = folder_module(folder, dtype) if state_dict is None else config_module(values, dtype)
    return TransformersModel(module, device, state_dict, deterministic=place.deterministic)


def _read_config(folder: Path) -> Mapping[str, Any]:
    try:
        config: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(
            f"EnginePlace.model_path must be a Hugging Face folder with a config.json, {folder} is "
            f"not: {error}",
            retryable=False,
        ) from error
    return config


def _folder_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a Hugging Face folder's safetensors files, one tensor in memory at a
    time.

    Raises:
        EngineError: no safetensors file, or an index that names a missing one.
    """
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
