"""Checkpoint export: a role's checkpoint as an ordinary Hugging Face folder, by its names alone; an
adapter's as a folder of peft's, or merged into its base.

- One shard of the folder is in memory at a time, cast as it is read.
- A folder at a URL gets each file as soon as it is written here, its configuration last.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

from agentrl.engines.torch.model.folder_names import FolderNames
from agentrl.engines.weights import weights_digest
from agentrl.errors import DataError, StoreError
from agentrl.store import write_failure
from agentrl.store.remote_folder import RemoteFolder, is_url
from agentrl.training.fsdp.checkpoint_files import MODEL_FOLDER, check_whole
from agentrl.training.models.folder_weights import FolderWeights, shard_ranges
from agentrl.training.models.lora import merge
from agentrl.training.models.names import PREFIX, DType, torch_dtype
from agentrl.training.models.peft_folder import (
    CONFIG,
    RECORD,
    WEIGHTS,
    AdapterRecord,
    check_unquantised,
    read_record,
    write_peft,
)

_KEYS = f"model.{PREFIX}"
"""What the names of weights begin with in a checkpoint."""


def export_checkpoint(
    checkpoint: Path,
    to: Path | str,
    *,
    dtype: DType | None = None,
    shard_bytes: int = 5 * 10**9,
    merge: bool = False,
    base: Path | None = None,
) -> int:
    """Writes sharded safetensors, the configuration and the tokenizer.

    Args:
        checkpoint: of one role.
        to: a folder, or the URL of one; it may not exist, or be empty. A folder appears once it is
            whole; at a URL ``config.json`` is written last.
        dtype: of the weights; None is that of the model's configuration, or float32 for an adapter.
        shard_bytes: most bytes of a file, where a weight is not larger by itself.
        merge: an adapter into its base; otherwise it is written as peft does.
        base: the folder of the base; None is where it was trained.

    Returns:
        Bytes of all weights.

    Raises:
        StoreError: the checkpoint is damaged or cannot be exported, or the folder cannot be
            written.
        DataError: the base is gone, or is another one.
        ConfigError: the URL cannot be read here, or the base is quantised.
    """
    asked = _Asked(checkpoint, dtype, shard_bytes, merge, base)
    if is_url(str(to)):
        return _export_to_url(asked, str(to))
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
        total = _write(asked, partial)
        os.replace(partial, folder)
    except (OSError, SafetensorError) as error:
        raise _not_exported(folder, folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return total


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of ``export_checkpoint``."""

    checkpoint: Path
    dtype: DType | None
    shard_bytes: int
    merges: bool
    base: Path | None


def _export_to_url(asked: _Asked, url: str) -> int:
    """Writes each file into a temporary folder, and from there to the URL."""
    remote = RemoteFolder(url, "--to")
    if remote.names():
        raise _not_empty(url)
    check_whole(asked.checkpoint)
    with tempfile.TemporaryDirectory() as folder:

        def move(path: Path) -> None:
            remote.put(path, path.name)
            path.unlink()

        try:
            return _write(asked, Path(folder), move)
        except (OSError, SafetensorError) as error:
            raise _not_exported(url, Path(folder), error) from error


def _not_empty(place: Path | str) -> StoreError:
    return StoreError(f"{place} must be new or empty, and it exists; export into another")


def _not_exported(place: Path | str, folder: Path, error: Exception) -> StoreError:
    return write_failure(f"the checkpoint could not be exported to {place}", folder, error)


def _write(asked: _Asked, folder: Path, done: Callable[[Path], None] = lambda path: None) -> int:
    """Writes the files of an export, ``config.json`` last; bytes of the weights.

    Args:
        asked: what is written.
        folder: that exists.
        done: told of each file that is whole.
    """
    described = asked.checkpoint / MODEL_FOLDER / "config.json"
    record = read_record(described.parent)
    if record is None and asked.merges:
        raise StoreError(
            f"{asked.checkpoint} holds a whole model and no adapter to merge; leave --merge out"
        )
    config = json.loads(described.read_text(encoding="utf-8"))
    # transformers wrote ``torch_dtype`` before it wrote ``dtype``.
    name = asked.dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    config["dtype"] = name
    beside = [path for path in sorted(described.parent.iterdir()) if path.name != RECORD]
    if record is not None and not asked.merges:
        total = _write_adapter(asked, record, folder, done)
        beside.remove(described)
    else:
        total = _write_weights(asked, record, folder, torch_dtype(name), done)
    for path in beside:
        if path != described:
            done(Path(shutil.copy2(path, folder)))
    if described in beside:
        (folder / described.name).write_text(json.dumps(config, indent=2), encoding="utf-8")
        done(folder / described.name)
    return total


def _write_adapter(
    asked: _Asked, record: AdapterRecord, folder: Path, done: Callable[[Path], None]
) -> int:
    dtype = torch_dtype(asked.dtype or "float32")
    total = write_peft(record, _adapter(asked.checkpoint, record, dtype), folder)
    for name in (WEIGHTS, CONFIG):
        done(folder / name)
    return total


def _adapter(checkpoint: Path, record: AdapterRecord, dtype: torch.dtype) -> dict[str, Tensor]:
    """All that was trained, by name."""
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    read = {}
    for name in record.trained():
        found = stored.get(_KEYS + name)
        if not isinstance(found, TensorStorageMetadata):
            raise StoreError(f"{checkpoint} lacks {name!r} of its adapter; it is corrupt")
        read[_KEYS + name] = torch.empty(found.size, dtype=dtype)
    _read(read, checkpoint)
    return {name.removeprefix(_KEYS): tensor for name, tensor in read.items()}


class _Whole:
    """The weights of a checkpoint of a whole model."""

    def __init__(self, checkpoint: Path) -> None:
        metadata = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
        stored: dict[str, Any] = {
            key.removeprefix(_KEYS): value
            for key, value in metadata.items()
            if key.startswith(_KEYS) and isinstance(value, TensorStorageMetadata)
        }
        self._checkpoint = checkpoint
        self._sizes = {name: value.size for name, value in stored.items()}
        self.names = FolderNames(_model(checkpoint / MODEL_FOLDER))
        known = {name for group in self.names.groups for name in group.parameters}
        # What is stored beside parameters, each as a group by itself.
        buffers = [
            self.names.group_of_one(name, size)
            for name, size in self._sizes.items()
            if name not in known
        ]
        self.groups = (*self.names.groups, *buffers)

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, Tensor]:
        """Weights by name."""
        read = {_KEYS + name: torch.empty(self._sizes[name], dtype=dtype) for name in names}
        _read(read, self._checkpoint)
        return {name.removeprefix(_KEYS): tensor for name, tensor in read.items()}


class _Merged:
    """The weights of a base with the adapter of a checkpoint.

    Raises:
        DataError: the base is gone, or is another one.
        ConfigError: it is quantised.
    """

    def __init__(self, checkpoint: Path, record: AdapterRecord, base: Path) -> None:
        named = f"--base={str(base)!r}"
        if not base.is_dir():
            raise DataError(
                f"{named} is no folder, and {checkpoint} holds an adapter of it alone; name where "
                "its base is by --base"
            )
        check_unquantised(base, named)
        if (found := weights_digest(base)) != record.base_digest:
            raise DataError(
                f"{named} holds other weights (digest {found[:12]}) than the adapter was trained "
                f"on ({record.base_digest[:12]}); name its base by --base"
            )
        hf = _model(checkpoint / MODEL_FOLDER)
        self._record = record
        self._adapter = _adapter(checkpoint, record, torch.float32)
        self._factors = record.factors()
        self._weights = FolderWeights(hf, base, named)
        self.names = self._weights.names
        saved = hf.state_dict()
        buffers = [
            self.names.group_of_one(name, buffer.shape)
            for name, buffer in hf.named_buffers()
            if name in saved
        ]
        self.groups = (*self.names.groups, *buffers)

    def read(self, names: Sequence[str], dtype: torch.dtype) -> dict[str, Tensor]:
        """Weights by name."""
        return {name: self._weight(name).to(dtype) for name in names}

    def _weight(self, name: str) -> Tensor:
        if name in self._record.whole:
            return self._adapter[name]
        own = self._weights.whole(name)
        if name not in self._factors:
            return own
        a, b = (self._adapter[one] for one in self._factors[name])
        return merge(self._record, name, own, (a, b), shard_ranges(own))


def _write_weights(
    asked: _Asked,
    record: AdapterRecord | None,
    folder: Path,
    dtype: torch.dtype,
    done: Callable[[Path], None],
) -> int:
    source = (
        _Whole(asked.checkpoint)
        if record is None
        else _Merged(asked.checkpoint, record, asked.base or Path(record.base))
    )
    groups = {own.parameters[0]: own for own in source.groups}
    files = split_state_dict_into_shards_factory(
        groups,
        get_storage_size=lambda own: (
            dtype.itemsize * sum(one.numel() for one in own.tensors.values())
        ),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=asked.shard_bytes,
    )
    where: dict[str, str] = {}
    for file, chosen in files.filename_to_tensors.items():
        read = source.read([name for own in chosen for name in groups[own].parameters], dtype)
        tensors: dict[str, Tensor] = {}
        for group in (groups[own] for own in chosen):
            tensors |= source.names.revert(group, {name: read[name] for name in group.parameters})
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


def _model(folder: Path) -> Any:
    """The model that a configuration describes, without its weights."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        return getattr(transformers, config.architectures[0])(config)


def _read(tensors: dict[str, Tensor], checkpoint: Path) -> None:
    try:
        with warnings.catch_warnings():
            # It is meant: one process reads what any number of ranks wrote.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, checkpoint_id=checkpoint, no_dist=True)
    except (ValueError, RuntimeError, CheckpointException) as error:
        raise StoreError(f"the weights of {checkpoint} cannot be read: {error}") from error
