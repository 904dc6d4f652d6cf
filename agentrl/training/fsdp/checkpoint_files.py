"""Checkpoint files: the listing of a role's checkpoint, and whether the files are those it names.

What reads a checkpoint alone needs no model, and so none of its libraries.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from agentrl.errors import CheckpointError, StoreError

LISTING = "files.json"
"""The file that is written last."""
MODEL_FOLDER = "model"
"""Configuration and tokenizer."""
FORMAT = 2
"""Of a role's checkpoint."""
LAYOUT = "torch.distributed.checkpoint"
"""The kind of files: shards that any number of ranks reads."""


def is_written(folder: Path) -> bool:
    """Whether a checkpoint's last file is there."""
    return (folder / LISTING).is_file()


def file_hashes(folder: Path, pattern: str) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of the files of a pattern, by their names within the folder."""
    found = {}
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": digest,
        }
    return found


def check_whole(folder: Path, *, part: int = 0, parts: int = 1) -> None:
    """Reads every file of a checkpoint once, or of several parts of them one.

    Raises:
        CheckpointError: one is missing, cannot be read or holds other bytes than were written.
        StoreError: they have another layout or format.
    """
    listing = folder / LISTING
    remedy = "it is corrupt; resume from an older checkpoint"
    try:
        record = json.loads(listing.read_text())
        files, found_format, layout = record["files"], record["format"], record["layout"]
        by_size = sorted(files, key=lambda name: (-files[name]["bytes"], name))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is no whole checkpoint: {LISTING} is missing; {remedy}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{listing} can't be read ({error}); {remedy}") from error
    if found_format != FORMAT:
        raise StoreError(
            f"{folder} has format {found_format!r} and this agentrl reads {FORMAT}; use the one "
            "that wrote it"
        )
    if layout != LAYOUT:
        raise StoreError(
            f"{folder} has the layout {layout!r} and this agentrl reads {LAYOUT!r}; use the one "
            "that wrote it"
        )
    # The largest files are dealt first, so that ranks read about as many bytes.
    for name in by_size[part::parts]:
        entry = files[name]
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; {remedy}")
        try:
            found = file_hashes(folder, name)[name]
        except OSError as error:
            raise CheckpointError(f"{path} can't be read ({error}); {remedy}") from error
        if found["bytes"] != entry["bytes"]:
            raise CheckpointError(
                f"{path} has {found['bytes']} bytes instead of {entry['bytes']}; {remedy}"
            )
        if found["sha256"] != entry["sha256"]:
            raise CheckpointError(f"{path} holds other bytes than were written; {remedy}")
