"""Model folders without torch: ``config.json``, and tensors as bytes under their Hugging Face
names, read, written and checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import ServedDtype
from agentrl.errors import DataError

_CODES: Mapping[ServedDtype, str] = {"float32": "F32", "bfloat16": "BF16"}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What families call the number of them."""
_DIGEST_BYTES = 512
"""Of each eighth of a tensor, read for a digest."""
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


@dataclass(frozen=True, slots=True, eq=False)
class WeightArray:
    """One tensor's raw bytes.

    Args:
        name: its Hugging Face name.
        dtype: as served.
        shape: of the whole tensor.
        data: ``[bytes]`` uint8, row-major, little-endian.
    """

    name: str
    dtype: ServedDtype
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def read_config(model: str | Path) -> Mapping[str, Any]:
    """The model's ``config.json``.

    Raises:
        DataError: there is none.
    """
    path = Path(model) / "config.json"
    try:
        config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"EnginePlace.model must be a Hugging Face folder, {path} cannot be read: {error}"
        ) from error
    return config


def num_experts(config: Mapping[str, Any]) -> int:
    """Of each mixture of a model's configuration; 0 for a dense one."""
    config = config.get("text_config") or config
    return next((int(config[name]) for name in _EXPERTS if config.get(name)), 0)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model folder's tensors; no data is read.

    Raises:
        DataError: it has no ``*.safetensors``, or one that is damaged.
    """
    return {
        name: shape
        for file in _files(folder)
        for name, (_, shape, _) in _header(file).items()
    }


def weights_digest(folder: Path) -> str:
    """What tells a folder's tensors from others, whichever files they lie in: their names, dtypes
    and shapes, and some of the bytes of each, so that it takes a moment at any size.

    Raises:
        DataError: as ``tensor_shapes``.
    """
    lines = []
    for file in _files(folder):
        whole = np.memmap(file, dtype=np.uint8, mode="r")
        for name, (code, shape, place) in _header(file).items():
            data = whole[place]
            eighths = data[: data.size // 8 * 8].reshape(8, -1)
            found = hashlib.sha256(eighths[:, :_DIGEST_BYTES].tobytes()).hexdigest()
            lines.append(f"{name} {code} {shape} {found}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def open_weights(folder: Path, dtype: ServedDtype) -> dict[str, WeightArray]:
    """The tensors of a folder in the servers' dtype; mapped into memory where they have it already.

    Raises:
        DataError: the folder holds numbers that servers do not load as ``dtype``.
    """
    arrays = {}
    for file in _files(folder):
        whole = np.memmap(file, dtype=np.uint8, mode="r")
        for name, (code, shape, place) in _header(file).items():
            data: npt.NDArray[np.uint8] = whole[place]
            if code != _CODES[dtype]:
                data = _converted(data, code, dtype, f"{file}: tensor {name!r}")
            arrays[name] = WeightArray(name, dtype, shape, data)
    return arrays


def _converted(
    data: npt.NDArray[np.uint8], code: str, dtype: ServedDtype, what: str
) -> npt.NDArray[np.uint8]:
    """The same numbers, rounded to the nearest (ties to even) where ``dtype`` is narrower."""
    if code == "BF16":
        bits = data.view(np.uint16).astype(np.uint32) << 16
    elif code in ("F16", "F32"):
        numbers = data.view(np.float16 if code == "F16" else np.float32)
        bits = numbers.astype(np.float32).view(np.uint32)
    else:
        raise DataError(
            f"{what} has dtype {code}; servers are given BF16, F16 or F32, save the model in one "
            "of them"
        )
    if dtype == "bfloat16":
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # The carry would make a number of a NaN whose upper bits are all ones, or nearly none.
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        return np.where(is_nan, bits >> 16 | 0x40, rounded).astype(np.uint16).view(np.uint8)
    return bits.view(np.uint8)


def model_files(model: Path) -> list[Path]:
    """Everything of a model's folder that is no weight, and that servers want beside some."""
    return [
        file
        for file in sorted(model.iterdir())
        if file.is_file() and not file.name.endswith(_WEIGHT_SUFFIXES)
    ]


def write_weights(file: BinaryIO, arrays: Sequence[WeightArray]) -> None:
    """A file of the safetensors format: the header's length (8 bytes), the header (JSON), the
    tensors' bytes.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for array in arrays:
        end = offset + array.data.size
        header[array.name] = {
            "dtype": _CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    # The format allows spaces behind the header, by which the tensors lie at a multiple of 8.
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        file.write(array.data.data)


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError(
            f"{folder} holds no *.safetensors; save the model with save_pretrained"
        )
    return files


def _header(file: Path) -> dict[str, tuple[str, tuple[int, ...], slice]]:
    """``name -> (dtype code, shape, bytes)``, the bytes counted from the file's beginning."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
        return {
            name: (
                entry["dtype"],
                tuple(entry["shape"]),
                slice(*(8 + size + offset for offset in entry["data_offsets"])),
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    # The first 8 bytes of another kind of file may ask for a header of any length.
    except (OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        raise DataError(
            f"{file} is no safetensors file ({error}); save the model again"
        ) from error
