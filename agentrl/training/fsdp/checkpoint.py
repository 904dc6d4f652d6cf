"""Role checkpoint: weights, optimizer state and step of a role on disk, sharded and exact to the
last bit; of a role with an adapter what is trained alone.

``torch.distributed.checkpoint`` writes the shards, ``model`` holds the configuration and tokenizer
of the model; ``files.json`` is written last, by rename, with the size and hash of each file, so
that a corrupt checkpoint is refused by name. A rank hashes its files as it writes them. What one
rank fails in, all raise at once.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from agentrl.errors import StoreError
from agentrl.store import write_failure, write_text
from agentrl.training.fsdp.checkpoint_files import (
    FORMAT,
    LAYOUT,
    LISTING,
    MODEL_FOLDER,
    check_whole,
    file_hashes,
    is_written,
)
from agentrl.training.fsdp.export import copy_beside_weights
from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.models.packed_model import PackedModel
from agentrl.training.models.peft_folder import check_goes_on, read_record, write_record
from agentrl.training.names import PREFIX
from agentrl.training.parallel.process_group import agree
from agentrl.training.parallel.shards import local
from agentrl.training.save_result import SaveResult


class CheckpointWriter:
    """Writes checkpoints of one role beside its training, one at a time.

    ``begin`` waits for the one before, copies the state to the host's memory and returns. A thread
    of low priority writes the copy, with collectives in a process group of its own. The copy's
    memory is kept for the next one.
    """

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        self._copies: dict[str, Tensor] = {}
        # writes one checkpoint and ends; ``result`` joins it
        self._thread: threading.Thread | None = None
        self._result: SaveResult | None = None

    def begin(
        self,
        folder: Path,
        state: Mapping[str, Tensor],
        model: PackedModel,
        *,
        step: int,
        purpose: str,
        source: Path,
    ) -> None:
        """Takes a checkpoint of the state as it is; every rank calls it alike.

        Args:
            folder: made if missing; it may not hold a checkpoint yet. All ranks can write it.
            state: what to write, by key; see ``training_state``.
            model: whose configuration is written.
            step: optimizer steps taken.
            purpose: whose weights these are, for messages.
            source: the folder that the model was loaded from, whose tokenizer is copied.

        Raises:
            StoreError: the folder holds a checkpoint already.
        """
        if self._thread is not None:
            # Rank 0 has told what became of it.
            self._thread.join()
        if is_written(folder):
            raise StoreError(f"{folder} holds a checkpoint already; save into a new folder")
        if self._group is None:
            # Ranks must meet in a group's collectives in one order. In the default group those of
            # the thread would fall between training's, on each rank elsewhere.
            self._group = dist.new_group(backend="gloo")
        group = self._group
        copied = self._copied(state) | {"step": torch.tensor(step)}
        start = time.monotonic()
        self._result = None

        def write() -> None:
            error = None
            # Linux keeps a priority for each thread, and takes the thread's own id here.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            try:
                _write(folder, copied, model, purpose=purpose, source=source, group=group)
            except StoreError as failed:
                error = failed
            except Exception as failed:  # noqa: BLE001
                # The boundary: the thread that waits tells it.
                error = write_failure(
                    f"the {purpose}'s checkpoint could not be written to {folder}",
                    folder,
                    failed,
                )
            self._result = SaveResult(time.monotonic() - start, error)

        self._thread = threading.Thread(target=write, name=f"checkpoint of the {purpose}")
        self._thread.start()

    def result(self, *, wait: bool) -> SaveResult | None:
        """What became of the checkpoint that ``begin`` took last; None while it is being written.

        Args:
            wait: until it is written.
        """
        if wait and self._thread is not None:
            self._thread.join()
        return self._result

    def wait(self) -> None:
        """Waits for what ``begin`` took last.

        Raises:
            StoreError: it could not be written.
        """
        result = self.result(wait=True)
        if result is not None and result.error is not None:
            raise result.error

    @torch.no_grad()
    def _copied(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        kept = self._copies
        # Only what this state has is kept: the copy of a tensor that is gone is freed.
        self._copies = {}
        for name, tensor in state.items():
            own = local(tensor)
            copy = kept.get(name)
            if copy is None or (copy.shape, copy.dtype) != (own.shape, own.dtype):
                copy = torch.empty(own.shape, dtype=own.dtype, pin_memory=own.is_cuda)
            copy.copy_(own, non_blocking=True)
            self._copies[name] = copy
            found[name] = (
                DTensor(copy, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
                if isinstance(tensor, DTensor)
                else copy
            )
        if any(tensor.is_cuda for tensor in state.values()):
            # The copies are done before a thread writes them or a step changes what they copy.
            torch.cuda.synchronize()
        return found


def _write(
    folder: Path,
    state: dict[str, Tensor],
    model: PackedModel,
    *,
    purpose: str,
    source: Path,
    group: dist.ProcessGroup,
) -> None:
    """Writes the files of a checkpoint, the listing last; what a rank fails in all of them raise.

    Raises:
        StoreError: a rank cannot write.
    """

    writer = _HashingWriter(folder)

    @contextmanager
    def together() -> Iterator[None]:
        failed: StoreError | None = None
        try:
            yield
        except _FAILURES as error:
            # torch raises one exception on all ranks, with the failures by rank. The others have
            # nothing to tell, and raise what ``_agree`` brings them.
            if dist.get_rank() in getattr(error, "failures", {dist.get_rank(): error}):
                what = f"the {purpose}'s checkpoint could not be written to {folder}"
                failed = write_failure(what, folder, writer.fs.refused or error)
        agree(failed, group)

    first = dist.get_rank() == 0
    # Apart from ``save``: a rank without a folder would leave the others alone in its collectives.
    with together():
        folder.mkdir(parents=True, exist_ok=True)
    own: dict[str, dict[str, Any]] = {}
    with together():
        save(state, storage_writer=writer, process_group=group)
        own = writer.hashes(f"__{dist.get_rank()}_")
        if first:
            _describe(model, source, folder / MODEL_FOLDER)
            # torch writes ``.metadata`` under another name and renames it, so it is read again.
            own |= file_hashes(folder, ".metadata") | file_hashes(
                folder, f"{MODEL_FOLDER}/*"
            )
    listed: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(listed, own, group=group)
    with together():
        if first:
            files = {name: entry for part in listed for name, entry in part.items()}
            listing = {
                "format": FORMAT,
                "layout": LAYOUT,
                "purpose": purpose,
                "files": files,
            }
            write_text(folder / LISTING, json.dumps(listing, indent=1, sort_keys=True))


_FAILURES = (OSError, RuntimeError, StoreError, CheckpointException)
"""Of a write; torch has RuntimeErrors of its own there."""


class _HashedFile(io.FileIO):
    """A file whose bytes are hashed as they are written, from the first to the last."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.refused: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            count = self._put(data)
        except OSError as error:
            self.refused = error
            raise
        view = memoryview(data).cast("B")[:count]
        self.sha256.update(view)
        self.size += count
        return count

    def _put(self, data: Any) -> int:
        return super().write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = super().seek(offset, whence)
        if place != self.size:
            raise io.UnsupportedOperation(
                "a file that is hashed is written from end to end"
            )
        return place


class _HashingFiles(FileSystem):
    """torch's file system, which hashes what it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, _HashedFile] = {}
        self.refused: OSError | None = None
        """Of a write, which torch tells as an error of its own."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        raw = _HashedFile(Path(path))
        try:
            with io.BufferedWriter(raw, _BUFFER_BYTES) as stream:
                yield stream
        finally:
            self.refused = raw.refused
        self.written[Path(path).name] = raw


class _HashingWriter(FileSystemWriter):
    """torch's writer, which knows the hashes of the files that it wrote."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fs: _HashingFiles = _HashingFiles()

    def hashes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Size and hash of each file whose name begins so."""
        return {
            name: {"bytes": file.size, "sha256": file.sha256.hexdigest()}
            for name, file in self.fs.written.items()
            if name.startswith(prefix)
        }


_BUFFER_BYTES = 2**20
_NICE = 10
"""Of the thread that writes: training goes first."""


def _describe(model: PackedModel, source: Path, folder: Path) -> None:
    """Writes what else a folder of the model holds, so that a checkpoint needs no other folder."""
    folder.mkdir()
    config = deepcopy(model.config)
    config.architectures = [type(model.hf).__name__]
    config.save_pretrained(folder)
    if model.lora is not None:
        write_record(model.lora.record, folder)
    copy_beside_weights(source, folder)


def load_checkpoint(
    folder: Path, model: PackedModel, optimizers: Sequence[torch.optim.Optimizer]
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
    check_together(folder)
    own = None if model.lora is None else model.lora.record
    check_goes_on(folder, read_record(folder / MODEL_FOLDER), own)
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = training_state(model, ()) | {"step": torch.tensor(0)}
    for prefix, parameter, values in _owned(model, optimizers):
        for key in (key for key in stored if key.startswith(prefix)):
            state[key] = values[key.removeprefix(prefix)] = _template(
                stored[key], parameter
            )
    if set(state) != set(stored):
        odd = sorted(set(state) ^ set(stored))[0]
        raise StoreError(
            f"{folder} belongs to another model or optimizer: {odd!r} is "
            f"{'missing' if odd in state else 'too much'} "
            "there; resume with the configuration that wrote it"
        )
    read_state(folder, state)
    return int(state["step"])


def read_state(folder: Path, state: dict[str, Tensor]) -> None:
    """Reads tensors of a checkpoint by their keys, of a divided one this rank's part; every rank
    calls it.

    Raises:
        StoreError: it cannot be read, or a tensor has another shape there.
    """
    try:
        load(state, checkpoint_id=folder)
    except (ValueError, RuntimeError, CheckpointException) as error:
        raise StoreError(
            f"{folder} could not be loaded; was it written for another model? {error}"
        ) from error


def stored_keys(folder: Path) -> frozenset[str]:
    """What a checkpoint holds, whose files are compared with their hashes first; every rank calls
    it.

    Raises:
        StoreError: it is corrupt, by every rank whichever found it.
    """
    check_together(folder)
    return frozenset(FileSystemReader(folder).read_metadata().state_dict_metadata)


def _owned(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """Each parameter of each optimizer, with the prefix of its state's keys and the state."""
    for owner, optimizer in enumerate(optimizers):
        mine = {
            id(parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for name, parameter in sharded_parameters(model).items():
            if id(parameter) in mine:
                yield f"optimizer.{owner}.{name}/", parameter, optimizer.state[parameter]


def training_state(
    model: PackedModel, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Parameters, buffers and optimizer state by their keys in a checkpoint; state that does not
    exist yet is left out.

    Raises:
        TrainingError: weights are gathered.
    """
    state: dict[str, Tensor] = {
        f"model.{name}": parameter.detach()
        for name, parameter in sharded_parameters(model).items()
        if model.lora is None or parameter.requires_grad
    }
    saved = model.hf.state_dict() if model.lora is None else ()
    state |= {
        f"model.{PREFIX}{name}": buffer
        for name, buffer in model.hf.named_buffers()
        if name in saved
    }
    for prefix, _, values in _owned(model, optimizers):
        state |= {prefix + key: value for key, value in values.items()}
    return state


def _template(stored: Any, parameter: nn.Parameter) -> Tensor:
    if not isinstance(stored, TensorStorageMetadata):
        raise StoreError(
            f"the checkpoint holds a {type(stored).__name__} where optimizer state should be"
        )
    # Moments lie over ranks as their parameter does. What has another shape, such as Adam's
    # count of steps, is whole on every rank.
    if stored.size == parameter.shape:
        return torch.zeros_like(parameter.detach(), dtype=stored.properties.dtype)
    return torch.zeros(stored.size, dtype=stored.properties.dtype, device=parameter.device)


def check_together(folder: Path) -> None:
    """Reads every file of a checkpoint once, over all ranks; every rank calls it.

    Raises:
        StoreError: as ``check_whole``, by every rank whichever found it.
    """
    error = None
    try:
        check_whole(folder, part=dist.get_rank(), parts=dist.get_world_size())
    except StoreError as found:
        error = found
    agree(error, None)
