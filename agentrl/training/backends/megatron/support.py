"""Support: what the Megatron backend runs, and what it refuses by name before it loads."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from agentrl.engines.torch.model.families import ATTENTION_OF, FAMILIES, computed
from agentrl.engines.weights import num_experts, read_config
from agentrl.errors import ConfigError, StoreError
from agentrl.training.backends.backend import RoleModel
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.parallel.layout_rules import check_megatron
from agentrl.training.parallel.process_group import DistSpec
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
        raise ConfigError(
            f"{needs}, the release that it was tested with, got {found}; {remedy}"
        )


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
    """Refuses what this backend does not heed.

    Raises:
        ConfigError: as said.
    """
    if asked.kind != "policy":
        raise ConfigError(
            "TrainConfig.backend='megatron' trains policies alone, and a critic or a reward model "
            f"({asked.kind}) is asked for; {_INSTEAD}"
        )
    check_megatron(
        {
            "ModelConfig.dtype": spec.dtype,
            "PlacementConfig.sp_size": place.sp,
            "RunSection.deterministic": spec.deterministic,
            "TrainConfig.compile": spec.compile,
            "TrainConfig.ep_size": spec.sharding.ep,
            "TrainConfig.gradient_checkpointing": spec.gradient_checkpointing,
            "TrainConfig.gradient_sync": spec.sharding.gradient_sync,
            "TrainConfig.offload": spec.offload,
            "TrainConfig.router_aux_loss": spec.router_aux_loss,
            "TrainConfig.shard": spec.sharding.mode,
        }
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
    family = config.get("model_type")
    if not computed({**config, "model_type": ATTENTION_OF.get(str(family), family)}):
        raise ConfigError(
            f"TrainConfig.backend='megatron' computes models of "
            f"{', '.join([*FAMILIES, *ATTENTION_OF])} without sliding windows and with default, "
            "linear or llama3 rotary embeddings, got "
            f"{family!r} as the family of {named}; {_INSTEAD}"
        )
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    key_heads = int(config.get("num_key_value_heads") or heads)
    for setting, size, parts, what in (
        ("pp_size", place.pp, layers, "layers"),
        ("tp_size", place.tp, heads, "attention heads"),
        ("tp_size", place.tp, key_heads, "key heads"),
        ("tp_size", place.tp, int(config["vocab_size"]), "entries of the vocabulary"),
        ("tp_size", place.tp, int(config["intermediate_size"]), "units of each MLP"),
        ("tp_size", place.tp, num_experts(config), "experts of each mixture"),
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
