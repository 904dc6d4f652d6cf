"""From a folder, or a configuration and tensors, to a model that the engine serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.engines.base import EnginePlace, ServedDtype
from agentrl.engines.torch.model.decoder import DecoderWeights
from agentrl.engines.torch.model.families import VISION, computed
from agentrl.engines.torch.model.images import ServedImages
from agentrl.engines.torch.model.served_model import ServedModel
from agentrl.engines.torch.model.transformers_check import unserved
from agentrl.engines.torch.model.transformers_model import (
    TransformersModel,
    config_module,
    folder_module,
    hugging_face_config,
)
from agentrl.engines.weights import open_weights, read_config
from agentrl.errors import ConfigError


def load_model(
    place: EnginePlace,
    device_name: str,
    config: Mapping[str, Any] | None = None,
    state_dict: Mapping[str, Tensor] | None = None,
) -> ServedModel:
    """The engine's own decoder where it computes the model, else transformers' forward, which is
    slower. What the own decoder computes is computed in fixed shapes where the engine is
    deterministic, on a CPU, with the trainer's own layers.

    Args:
        place: names the folder and the dtype.
        device_name: as torch calls it.
        config: instead of the folder's.
        state_dict: instead of the folder's weights.

    Raises:
        ConfigError: the device is not there.
        DataError: the folder cannot be read.
        EngineError: neither can serve it, or weights are missing.
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
    values = read_config(folder) if config is None else config
    kind = str(values.get("model_type"))
    if "vision_config" in values and kind not in VISION:
        raise unserved(kind, f"of models that see images it serves {' and '.join(VISION)}")
    dtype = getattr(torch, place.dtype)
    exact = place.deterministic and device.type == "cpu" and computed(values)
    if computed(values) and not exact:
        weights = DecoderWeights(hugging_face_config(values), dtype, device)
        weights.load(
            _folder_tensors(folder, place.dtype)
            if state_dict is None
            else state_dict.items()
        )
        return weights
    module = (
        folder_module(folder, dtype) if state_dict is None else config_module(values, dtype)
    )
    return TransformersModel(
        module,
        device,
        state_dict,
        deterministic=place.deterministic,
        exact=exact,
        images=ServedImages(module, folder) if kind in VISION else None,
    )


def _folder_tensors(folder: Path, dtype: ServedDtype) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a Hugging Face folder, one tensor in memory at a time."""
    for name, array in open_weights(folder, dtype).items():
        # a copy: torch wants memory that may be written, and the folder's is not
        data = torch.from_numpy(array.data.copy())
        yield name, data.view(getattr(torch, dtype)).reshape(array.shape)
