"""Role checkpoint: weights, optimizer state and step of a role on disk, sharded and exact to the
last bit.

``torch.distributed.checkpoint`` writes the shards, ``model`` holds the configuration and tokenizer
of the model; ``files.json`` is written last, by rename, with the size and hash of each file, so
that a corrupt checkpoint is refused by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from agentrl.errors import StoreError
from agentrl.store import write_failure, write_text
from agentrl.training.fsdp.export import copy_beside_weights
from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.models.packed_model import PackedModel

_LISTING = "files.json"
MODEL_FOLDER = "model"
FORMAT = 2
"""Of a role's checkpoint; 1 had no configuration and tokenizer."""


def save_checkpoint(
    folder: Path,
    model: PackedModel,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    step: int,
    purpose: str,
    source: Path,
) -> None:
    """Write a checkpoint; every rank calls it with the same folder, which all of them can write.

    Args:
        folder: made if missing; it may not hold a checkpoint yet.
        model, optimizers: what to write; optimizer state that doesn't exist yet is left out.
        step: optimizer steps taken.
        purpose: whose weights these are, for messages.
        source: the folder that the model was loaded from, whose tokenizer is copied.

    Raises:
        StoreError: the folder holds a checkpoint already, or can't be written.
        TrainingError: weights are gathered.
    """
    if (folder / _LISTING).exists():
        raise StoreError(f"{folder} holds a checkpoint already; save into a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(_state(model, optimizers) | {"step": torch.tensor(step)}, checkpoint_id=folder)
        own = _hashes(folder, f"__{dist.get_rank()}_*")
        if dist.get_rank() == 0:
            _describe(model, source, folder / MODEL_FOLDER)
            own |= _hashes(folder, ".metadata") | _hashes(folder, f"{MODEL_FOLDER}/*")
        listed: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(listed, own)
        if dist.get_rank() == 0:
            files = {name: entry for part in listed for name, entry in part.items()}
            listing = {"format": FORMAT, "purpose": purpose, "files": files}
            write_text(folder / _LISTING, json.dumps(listing, indent=1, sort_keys=True))
        dist.barrier()
    except (
        OSError,
        RuntimeError,
        CheckpointException,
    ) as error:  # torch has RuntimeErrors of its own here
        raise write_failure(
            f"the {purpose}'s checkpoint could not be written to {folder}", folder, error
        ) from error


def _describe(model: PackedModel, source: Path, folder: Path) -> None:
    """Writes what else a folder of the model holds, so that a checkpoint needs no other folder."""
    folder.mkdir()
    config = deepcopy(model.config)
    config.architectures = [type(model.hf).__name__]
    config.save_pretrained(folder)
    copy_beside_weights(source, folder)


def load_checkpoint(
    folder: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> int:
    """Read a checkpoint into ``model`` and ``optimizers``; every rank calls it. Another world size
    is fine.

    Returns:
        The optimizer steps taken.

    Raises:
        StoreError: the checkpoint is corrupt (the message names the file), or belongs to another
            model or optimizer.
        TrainingError: weights are gathered.
    """
    check_whole(folder)
    reader = FileSystemReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    state = _state(model, ()) | {"step": torch.tensor(0)}
    for prefix, parameter, values in _owned(model, optimizers):
        for key in (key for key in stored if key.startswith(prefix)):
            state[key] = values[key.removeprefix(prefix)] = _template(stored[key], parameter)
    if set(state) != set(stored):
        odd = sorted(set(state) ^ set(stored))[0]
        raise StoreError(
            f"{folder} belongs to another model or optimizer: {odd!r} is "
            f"{'missing' if odd in state else 'too much'} "
            "there; resume with the configuration that wrote it"
        )
    try:
        load(state, checkpoint_id=folder)
    except (ValueError, RuntimeError, CheckpointException) as error:
        raise StoreError(
            f"{folder} could not be loaded; was it written for another model? {error}"
        ) from error
    return int(state["step"])


def _owned(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """Each parameter of each optimizer, with the prefix of its state's keys and the state."""
    for owner, optimizer in enumerate(optimizers):
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in sharded_parameters(model).items():
            if id(parameter) in mine:
                yield f"optimizer.{owner}.{name}/", parameter, optimizer.state[parameter]


def _state(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {
        f"model.{name}": parameter.detach() for name, parameter in sharded_parameters(model).items()
    }
    for prefix, _, values in _owned(model, optimizers):
        state |= {prefix + key: value for key, value in values.items()}
    return state


def _template(stored: Any, parameter: nn.Parameter) -> Tensor:
    if not isinstance(stored, TensorStorageMetadata):
        raise StoreError(
            f"the checkpoint holds a {type(stored).__name__} where optimizer state should be"
        )
    if stored.size == parameter.shape:
        return torch.zeros_like(parameter.detach(), dtype=stored.properties.dtype)
    return torch.zeros(stored.size, dtype=stored.properties.dtype, device=parameter.device)


def _hashes(folder: Path, pattern: str) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": digest,
        }
    return found


def check_whole(folder: Path) -> None:
    """Reads every file of a checkpoint once.

    Raises:
        StoreError: one is missing or holds other bytes than were written, or a newer agentrl wrote
            them.
    """
    listing = folder / _LISTING
    remedy = "it is corrupt; resume from an older checkpoint"
    try:
        record = json.loads(listing.read_text())
        files, found_format = record["files"], int(record.get("format", 1))
    except FileNotFoundError:
        raise StoreError(
            f"{folder} is no whole checkpoint: {_LISTING} is missing; {remedy}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{listing} can't be read ({error}); {remedy}") from error
    if found_format > FORMAT:
        raise StoreError(
            f"{folder} has format {found_format} and this agentrl reads up to {FORMAT}; use the "
            "one that wrote it"
        )
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise StoreError(f"{path} is missing; {remedy}")
        found = _hashes(folder, name)[name]
        if found["bytes"] != entry["bytes"]:
            raise StoreError(
                f"{path} has {found['bytes']} bytes instead of {entry['bytes']}; {remedy}"
            )
        if found["sha256"] != entry["sha256"]:
            raise StoreError(f"{path} holds other bytes than were written; {remedy}")
