"""Checkpoint export: a role's checkpoint as an ordinary Hugging Face folder, by its names alone.

- One shard of the folder is in memory at a time, cast as it is read.
- A folder at a URL gets each file as soon as it is written here, its configuration last.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoConfig

from agentrl.engines.torch.model.folder_names import FolderNames, ParameterGroup
from agentrl.errors import StoreError
from agentrl.store import write_failure
from agentrl.store.remote_folder import RemoteFolder, is_url
from agentrl.training.fsdp.checkpoint_files import MODEL_FOLDER, check_whole
from agentrl.training.models.names import PREFIX, DType, torch_dtype

_KEYS = f"model.{PREFIX}"
"""What the names of weights begin with in a checkpoint."""


def export_checkpoint(
    checkpoint: Path, to: Path | str, *, dtype: DType | None = None, shard_bytes: int = 5 * 10**9
) -> int:
    """Writes sharded safetensors, the configuration and the tokenizer.

    Args:
        checkpoint: of one role.
        to: a folder, or the URL of one; it may not exist, or be empty. A folder appears once it is
            whole; at a URL ``config.json`` is written last.
        dtype: of the weights; None is that of the model's configuration.
        shard_bytes: most bytes of a file, where a weight is not larger by itself.

    Returns:
        Bytes of all weights.

    Raises:
        StoreError: the checkpoint is damaged or cannot be exported, or the folder cannot be
            written.
        ConfigError: the URL cannot be read here.
    """
    if is_url(str(to)):
        return _export_to_url(checkpoint, str(to), dtype, shard_bytes)
    folder = Path(to)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if folder.exists():
        raise _not_empty(folder)
    check_whole(checkpoint)
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        total = _write(checkpoint, partial, dtype, shard_bytes)
        os.replace(partial, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise _not_exported(folder, folder, error) from error
    return total


def _export_to_url(checkpoint: Path, url: str, dtype: DType | None, shard_bytes: int) -> int:
    """Writes each file into a temporary folder, and from there to the URL."""
    remote = RemoteFolder(url, "--to")
    if remote.names():
        raise _not_empty(url)
    check_whole(checkpoint)
    with tempfile.TemporaryDirectory() as folder:

        def move(path: Path) -> None:
            remote.put(path, path.name)
            path.unlink()

        try:
            return _write(checkpoint, Path(folder), dtype, shard_bytes, move)
        except (OSError, SafetensorError) as error:
            raise _not_exported(url, Path(folder), error) from error


def _not_empty(place: Path | str) -> StoreError:
    return StoreError(f"{place} must be new or empty, and it exists; export into another")


def _not_exported(place: Path | str, folder: Path, error: Exception) -> StoreError:
    return write_failure(f"the checkpoint could not be exported to {place}", folder, error)


def _write(
    checkpoint: Path,
    folder: Path,
    dtype: DType | None,
    shard_bytes: int,
    done: Callable[[Path], None] = lambda path: None,
) -> int:
    """Writes the files of an export, ``config.json`` last; bytes of the weights.

    Args:
        checkpoint: of one role.
        folder: that exists.
        dtype, shard_bytes: as of ``export_checkpoint``.
        done: told of each file that is whole.
    """
    described = checkpoint / MODEL_FOLDER / "config.json"
    config = json.loads(described.read_text(encoding="utf-8"))
    # transformers wrote ``torch_dtype`` before it wrote ``dtype``.
    name = dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    config["dtype"] = name
    total = _write_weights(checkpoint, folder, torch_dtype(name), shard_bytes, done)
    for path in sorted(described.parent.iterdir()):
        if path != described:
            done(Path(shutil.copy2(path, folder)))
    (folder / described.name).write_text(json.dumps(config, indent=2), encoding="utf-8")
    done(folder / described.name)
    return total


def _write_weights(
    checkpoint: Path,
    folder: Path,
    dtype: torch.dtype,
    shard_bytes: int,
    done: Callable[[Path], None],
) -> int:
    reader = FileSystemReader(checkpoint)
    stored: dict[str, Any] = {
        key.removeprefix(_KEYS): value
        for key, value in reader.read_metadata().state_dict_metadata.items()
        if key.startswith(_KEYS) and isinstance(value, TensorStorageMetadata)
    }
    names = _names(checkpoint / MODEL_FOLDER)
    groups = {own.parameters[0]: own for own in (*names.groups, *_buffers(names, stored))}
    files = split_state_dict_into_shards_factory(
        groups,
        get_storage_size=lambda own: (
            dtype.itemsize * sum(one.numel() for one in own.tensors.values())
        ),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    where: dict[str, str] = {}
    for file, chosen in files.filename_to_tensors.items():
        read = {
            _KEYS + name: torch.empty(stored[name].size, dtype=dtype)
            for own in chosen
            for name in groups[own].parameters
        }
        _read(read, checkpoint)
        tensors: dict[str, Tensor] = {}
        for group in (groups[own] for own in chosen):
            tensors |= names.revert(group, {name: read[_KEYS + name] for name in group.parameters})
        save_file(tensors, folder / file, metadata={"format": "pt"})
        done(folder / file)
        where |= dict.fromkeys(tensors, file)
    total = int(files.metadata["total_size"])
    if files.is_sharded:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        text = json.dumps(index, indent=2, sort_keys=True)
        path = folder / "model.safetensors.index.json"
        path.write_text(text, encoding="utf-8")
        done(path)
    return total


def _names(folder: Path) -> FolderNames:
    """Of the model that a configuration describes, which is built without its weights."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        return FolderNames(getattr(transformers, config.architectures[0])(config))


def _buffers(names: FolderNames, stored: Mapping[str, Any]) -> list[ParameterGroup]:
    """What is stored beside parameters, each as a group by itself."""
    known = {name for group in names.groups for name in group.parameters}
    return [
        names.group_of_one(name, value.size) for name, value in stored.items() if name not in known
    ]


def _read(tensors: dict[str, Tensor], checkpoint: Path) -> None:
    try:
        with warnings.catch_warnings():
            # It is meant: one process reads what any number of ranks wrote.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, checkpoint_id=checkpoint, no_dist=True)
    except (ValueError, RuntimeError, CheckpointException) as error:
        raise StoreError(f"the weights of {checkpoint} cannot be read: {error}") from error
