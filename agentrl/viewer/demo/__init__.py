"""Demo: a recorded run with planted faults, which comes with agentrl.

``python -m benchmarks.demo.make`` made it: a real run of ``examples/code``, into which faults were
planted. ``planted.json`` lists them, with the page that shows each.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import zstandard

from agentrl.errors import DataError
from agentrl.viewer.index.database import user_cache

FOLDER = Path(__file__).parent
PACK = FOLDER / "run.tar.zst"
PLANTED = FOLDER / "planted.json"
MAX_BYTES = 2_000_000
"""The largest pack that the wheel may carry."""


def unpack_demo(cache: Path | None = None) -> Path:
    """The demo's run directory, unpacked once; in a temporary folder where the cache takes none.

    Args:
        cache: a folder of the user's; None is ``$XDG_CACHE_HOME/agentrl``.

    Raises:
        DataError: the pack is missing or damaged.
    """
    expected = _listed()["sha256"]
    try:
        packed = PACK.read_bytes()
    except OSError as error:
        why = error.strerror
        raise DataError(f"{PACK} cannot be read: {why}; install agentrl again") from error
    if (found := hashlib.sha256(packed).hexdigest()) != expected:
        raise DataError(
            f"{PACK} must have the hash {expected}, got {found}; install agentrl again"
        )
    # the last part is what people see as the run's name
    name = Path(f"demo-{expected[:16]}") / "demo"
    folder = (user_cache() if cache is None else cache) / name
    if (folder / "run.json").is_file():
        return folder
    try:
        return _unpacked(packed, folder)
    except OSError:
        # such as a home that is read-only
        return _unpacked(packed, Path(tempfile.mkdtemp(prefix="agentrl-")) / name)


def _unpacked(packed: bytes, folder: Path) -> Path:
    """``folder``, which exists whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when it is whole: two that unpack at one time see no half of it.
    unfinished = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
    try:
        data = zstandard.ZstdDecompressor().decompress(packed)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(unfinished, filter="data")
        try:
            unfinished.rename(folder)
        except OSError:
            # another process was first; a fault of the disk is told by what follows
            if not (folder / "run.json").is_file():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _listed() -> dict[str, Any]:
    try:
        listed: dict[str, Any] = json.loads(PLANTED.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{PLANTED} cannot be read: {error}; install agentrl again"
        ) from error
    return listed
