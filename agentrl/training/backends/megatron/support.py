"""Support: what the Megatron backend runs, and what it refuses by name before it loads."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from agentrl.engines.torch.model.families import FAMILIES, computed
from agentrl.engines.weights import read_config
from agentrl.errors import ConfigError, StoreError
from agentrl.training.backends.backend import RoleModel
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.parallel.process_group import FULL, DistSpec
from agentrl.types.user_code.load import install

_TESTED = "0.16"
"""The releases of megatron-core whose internals this backend was tested with."""

_INSTEAD = "set TrainConfig.backend=fsdp2"


def check_release() -> None:
    """Refuses to run without megatron-core, or with a release whose internals may be others.

    Raises:
        ConfigError: as said.
    """
    needs = f"TrainConfig.backend='megatron' needs megatron-core {_TESTED}.*"
    remedy = f"{install('megatron')}, or {_INSTEAD}"
    try:
        found = version("megatron-core")
    except PackageNotFoundError:
        raise ConfigError(f"{needs}, which is not installed; {remedy}") from None
    if not found.startswith(f"{_TESTED}."):
        raise ConfigError(f"{needs}, the release that it was tested with, got {found}; {remedy}")


def check_device() -> None:
    """Refuses a process without a GPU, on which megatron-core itself allocates.

    Raises:
        ConfigError: as said.
    """
    try:
        torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        raise ConfigError(
            "TrainConfig.backend='megatron' needs PlacementConfig.device=cuda, because "
            f"megatron-core allocates on a GPU itself, and torch has none here ({error}); "
            f"set it, or {_INSTEAD}"
        ) from error


def check_asked(spec: ModelSpec, asked: RoleModel, place: DistSpec) -> None:
    """Refuses settings that this backend does not heed, all at once.

    Raises:
        ConfigError: as said.
    """
    unheeded: Mapping[str, bool] = {
        f"a model of {asked.kind} (a critic or a reward model)": asked.kind != "policy",
        "TrainConfig.compile": spec.compile,
        "TrainConfig.gradient_checkpointing='selective'": (
            spec.gradient_checkpointing == "selective"
        ),
        f"TrainConfig.offload={spec.offload!r}": spec.offload != "none",
        "TrainConfig.shard, shard_size, gradient_sync and ep_size": spec.sharding != FULL,
        "TrainConfig.router_aux_loss": spec.router_aux_loss > 0,
        f"ModelConfig.dtype={spec.dtype!r}": spec.dtype == "float64",
        "RunSettings.deterministic": spec.deterministic,
        f"PlacementConfig.sp_size={place.sp}": place.sp > 1,
    }
    found = [name for name, holds in unheeded.items() if holds]
    if found:
        raise ConfigError(
            f"TrainConfig.backend='megatron' does not support {'; '.join(found)}; leave that out, "
            f"or {_INSTEAD}"
        )


def check_model(spec: ModelSpec, place: DistSpec) -> None:
    """Refuses a model that this backend does not compute, or whose layers or heads a layout does
    not divide.

    Raises:
        ConfigError: as said.
    """
    folder = Path(spec.model_path)
    if not (folder / "config.json").is_file():
        # ``open_pretrained`` says what the folder lacks.
        return
    config = read_config(folder)
    named = f"{spec.setting}={spec.model_path!r}"
    if not computed(config):
        raise ConfigError(
            f"TrainConfig.backend='megatron' computes dense models of {', '.join(FAMILIES)} "
            "without sliding windows and with default, linear or llama3 rotary embeddings, got "
            f"{config.get('model_type')!r} as the family of {named}; {_INSTEAD}"
        )
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    key_heads = int(config.get("num_key_value_heads") or heads)
    for setting, size, parts, what in (
        ("pp_size", place.pp, layers, "layers"),
        ("tp_size", place.tp, heads, "attention heads"),
        ("tp_size", place.tp, key_heads, "key heads"),
        ("tp_size", place.tp, int(config["vocab_size"]), "entries of the vocabulary"),
        ("tp_size", place.tp, int(config["intermediate_size"]), "units of each MLP"),
    ):
        if parts % size:
            raise ConfigError(
                f"PlacementConfig.{setting} must divide the {parts} {what} of {named} under "
                f"TrainConfig.backend='megatron', got {size}; set a divisor",
                fields=[f"PlacementConfig.{setting}"],
            )


def unreadable_optimizer(folder: Path, keys: list[str]) -> StoreError:
    """Of a checkpoint that was written with an optimizer or parameters that this backend lacks."""
    return StoreError(
        f"{folder} cannot be resumed under TrainConfig.backend='megatron', which reads the whole "
        f"weights and AdamW's moments of a dense model: {keys[0]!r} is something else or missing "
        "there (Muon and adapters are fsdp2's and plain's); resume with the backend and the "
        "optimizer that wrote it"
    )
