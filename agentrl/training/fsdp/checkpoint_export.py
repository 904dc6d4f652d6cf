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
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

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
from agentrl.training.models.peft_folder import (
    CONFIG,
    RECORD,
    WEIGHTS,
    AdapterRecord,
    check_unquantised,
    read_record,
    write_peft,
)
from agentrl.training.names import PREFIX, DType, torch_dtype

_KEYS = f"model.{PREFIX}"
"""What the names of weights begin with in a checkpoint."""

_Done: TypeAlias = Callable[[Path], object]
"""Told of each file that is whole."""
_Reader: TypeAlias = Callable[[Collection[str], torch.dtype], dict[str, Tensor]]
"""Gives weights and buffers by name."""


def export_checkpoint(
    checkpoint: Path,
    to: Path | str,
    *,
    dtype: DType | None = None,
    shard_bytes: int = 5 * 10**9,
    merges: bool = False,
) -> int:
    """Writes sharded safetensors, the configuration and the tokenizer.

    Args:
        checkpoint: of one role.
        to: a folder, or the URL of one; it may not exist, or be empty. A folder appears once it is
            whole; at a URL the configuration is written last.
        dtype: of the weights; None is that of the model's configuration, or float32 for an adapter.
        shard_bytes: most bytes of a file, where a weight is not larger by itself.
        merges: an adapter into its base; otherwise it is written as peft does.

    Returns:
        Bytes of all weights.

    Raises:
        StoreError: the checkpoint is damaged or cannot be exported, or the folder cannot be
            written.
        DataError: the base of an adapter is gone, or is another one.
        ConfigError: the URL cannot be read here, or the base is quantised.
    """
    write = partial(_write, checkpoint, dtype=dtype, shard_bytes=shard_bytes, merges=merges)
    if is_url(str(to)):
        return _export_to_url(checkpoint, str(to), write)
    folder = Path(to)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if folder.exists():
        raise _not_empty(folder)
    check_whole(checkpoint)
    made = folder.with_name(f"{folder.name}.partial")
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        total = write(made, lambda _: None)
        os.replace(made, folder)
    except (OSError, SafetensorError) as error:
        raise _not_exported(folder, folder, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return total


def _export_to_url(checkpoint: Path, url: str, write: Callable[[Path, _Done], int]) -> int:
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
            return write(Path(folder), move)
        except (OSError, SafetensorError) as error:
            raise _not_exported(url, Path(folder), error) from error


def _not_empty(place: Path | str) -> StoreError:
    return StoreError(f"{place} must be new or empty, and it exists; export into another")


def _not_exported(place: Path | str, folder: Path, error: Exception) -> StoreError:
    return write_failure(f"the checkpoint could not be exported to {place}", folder, error)


def _write(
    checkpoint: Path,
    folder: Path,
    done: _Done,
    *,
    dtype: DType | None,
    shard_bytes: int,
    merges: bool,
) -> int:
    """Writes the files of an export into a folder that exists, its configuration last; bytes of the
    weights."""
    described = checkpoint / MODEL_FOLDER
    record = read_record(described)
    if record is None and merges:
        raise StoreError(f"{checkpoint} holds a whole model, no adapter; leave --merge out")
    last = folder / "config.json"
    config = json.loads((described / "config.json").read_bytes())
    if record is not None and not merges:
        adapter = _read(checkpoint, record.trained(), torch_dtype(dtype or "float32"))
        total, config = write_peft(record, adapter, folder)
        done(folder / WEIGHTS)
        last = folder / CONFIG
    else:
        # transformers wrote ``torch_dtype`` before it wrote ``dtype``.
        config["dtype"] = (
            dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
        )
        total = _write_weights(
            checkpoint, record, folder, config["dtype"], shard_bytes, done
        )
    for path in sorted(described.iterdir()):
        if path.name not in ("config.json", RECORD):
            done(Path(shutil.copy2(path, folder)))
    last.write_text(json.dumps(config, indent=2), encoding="utf-8")
    done(last)
    return total


def _write_weights(
    checkpoint: Path,
    record: AdapterRecord | None,
    folder: Path,
    dtype: DType,
    shard_bytes: int,
    done: _Done,
) -> int:
    hf, served = _model(checkpoint / MODEL_FOLDER), torch_dtype(dtype)
    read: _Reader = partial(_read, checkpoint)
    if record is None:
        sizes = _sizes(checkpoint)
    else:
        saved = hf.state_dict()
        sizes = {name: one.shape for name, one in hf.named_buffers() if name in saved}
        read = _merged(checkpoint, record, hf)
    names = FolderNames(hf)
    known = {name for group in names.groups for name in group.parameters}
    # What is stored beside parameters, each as a group by itself.
    beside = [
        names.group_of_one(name, size) for name, size in sizes.items() if name not in known
    ]
    groups = {own.parameters[0]: own for own in (*names.groups, *beside)}
    files = split_state_dict_into_shards_factory(
        groups,
        get_storage_size=lambda own: (
            served.itemsize * sum(one.numel() for one in own.tensors.values())
        ),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    where: dict[str, str] = {}
    for file, chosen in files.filename_to_tensors.items():
        own = read([name for first in chosen for name in groups[first].parameters], served)
        tensors: dict[str, Tensor] = {}
        for group in (groups[first] for first in chosen):
            tensors |= names.revert(group, {name: own[name] for name in group.parameters})
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


def _merged(checkpoint: Path, record: AdapterRecord, hf: Any) -> _Reader:
    """Reads the base of a checkpoint's adapter, with it.

    Raises:
        DataError: the base is gone, or is another one.
        ConfigError: it is quantised.
    """
    base = Path(record.base)
    named = f"{base}, the base of the adapter in {checkpoint},"
    if not base.is_dir():
        raise DataError(f"{named} is gone; put it back to merge the adapter into it")
    check_unquantised(base, named)
    if (found := weights_digest(base)) != record.base_digest:
        raise DataError(
            f"{named} holds other weights by now (digest {found[:12]}) than the adapter was "
            f"trained on ({record.base_digest[:12]}); put those back"
        )
    weights = FolderWeights(hf, base, named)
    adapter = _read(checkpoint, record.trained(), torch.float32)
    factors = record.factors()

    def one(name: str) -> Tensor:
        if name in record.whole:
            return adapter[name]
        own = weights.whole(name)
        if name not in factors:
            return own
        pair = [adapter[factor] for factor in factors[name]]
        return merge(record, name, own, pair, shard_ranges(own))

    return lambda names, dtype: {name: one(name).to(dtype) for name in names}


def _sizes(checkpoint: Path) -> dict[str, torch.Size]:
    """The shapes of what a checkpoint holds of a model, by name."""
    return {
        key.removeprefix(_KEYS): value.size
        for key, value in FileSystemReader(checkpoint)
        .read_metadata()
        .state_dict_metadata.items()
        if key.startswith(_KEYS) and isinstance(value, TensorStorageMetadata)
    }


def _read(
    checkpoint: Path, names: Collection[str], dtype: torch.dtype
) -> dict[str, Tensor]:
    """What a checkpoint holds of a model, by name."""
    sizes = _sizes(checkpoint)
    tensors = {_KEYS + name: torch.empty(sizes[name], dtype=dtype) for name in names}
    try:
        with warnings.catch_warnings():
            # It is meant: one process reads what any number of ranks wrote.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, checkpoint_id=checkpoint, no_dist=True)
    except (ValueError, RuntimeError, CheckpointException) as error:
        raise StoreError(f"the weights of {checkpoint} cannot be read: {error}") from error
    return {name.removeprefix(_KEYS): tensor for name, tensor in tensors.items()}
