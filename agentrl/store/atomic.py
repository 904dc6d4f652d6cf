"""Atomic replacement: files and folders that are written beside their place, then renamed into
it.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.write_error import write_failure


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an
    exception.

    Args:
        path: the file.
        durable: whether it outlives a power failure too, which costs a sync of file and folder.

    Raises:
        StoreError: the file cannot be written, synced or renamed.
    """
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if durable:
            take_place(temporary, path)
        else:
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_failure(f"{path} cannot be written", path, error) from error
        raise


def temporary_beside(path: Path) -> Path:
    """A new name for what is to take the place of ``path``: ``.NAME.<hex>.tmp``."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def take_place(temporary: Path, path: Path) -> None:
    """Move a file to its place, durably.

    Raises:
        OSError: it cannot be synced or renamed.
    """
    sync_path(temporary)
    os.replace(temporary, path)
    sync_path(path.parent)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A fresh folder beside ``folder`` that takes its place when the block ends without an
    exception.

    What an earlier death left of it is removed first. Its files are not synced: such a folder can
    be made again from what the run keeps durably.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` in one step; durably, unless that is not asked for.

    Raises:
        StoreError: the file cannot be written.
    """
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in UTF-8, durably and in one step.

    Raises:
        StoreError: the file cannot be written.
    """
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON, durably and in one step.

    Raises:
        StoreError: ``value`` is not JSON (a NaN or infinity is not), or the file cannot be written.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} must hold JSON: {error}") from error
    write_text(path, text + "\n")


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
