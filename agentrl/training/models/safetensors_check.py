"""Safetensors check: names a file of weights that is cut, before a model is read from it.

Source: https://github.com/huggingface/safetensors, "Format": eight bytes with the header's length,
the header, the tensors' bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.errors import DataError

_LENGTH_BYTES = 8


def check_safetensors(folder: Path, named: str) -> None:
    """Compares the size of each ``*.safetensors`` file of a folder with what its header says.

    Args:
        folder: of a model.
        named: the setting that names it, for errors.

    Raises:
        DataError: a file is shorter than its header says, or has none.
    """
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        expected = _expected_size(path, size)
        if expected is None or size < expected:
            wanted = "a whole header" if expected is None else f"the {expected} of its header"
            raise DataError(
                f"{named}: {path.name} is cut or no safetensors file: it has {size} bytes, not "
                f"{wanted}; copy or download it again"
            )


def _expected_size(path: Path, size: int) -> int | None:
    """Bytes of the whole file; None where the header cannot be read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= size - _LENGTH_BYTES:
            return None
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            ends = [entry["data_offsets"][1] for entry in header.values()]
            return _LENGTH_BYTES + length + int(max(ends, default=0))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return None
