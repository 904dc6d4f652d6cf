"""Checksum: of a tensor or of its shards, by which trainer and engine compare weights without
moving them (docs/engines.md).

A tensor's bytes are read as 8-byte words, the last one filled up with zeros. Two sums modulo 2**64
are made, in which word i counts 2i + 1 times: of the words, and of their upper halves.

- One changed word is always told, since 2i + 1 is odd.
- Two words that changed places within 2**31 words are told. The first sum alone would miss two that
  differ in their highest bit, which is a sign.
- The sums of shards add up to those of the whole, wherever it is cut: a word that is cut has zeros
  in place of the other shard's bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_WORD = 8
_BLOCK = {"cpu": 2**19, "cuda": 2**24}
"""Bytes that are summed at once: on a CPU they stay in its cache."""
_COLUMNS = 1024
"""Words of a row where the rows do not matter."""


def tensor_checksum(name: str, tensor: Tensor) -> int:
    """The checksum of a whole tensor; see ``checksum_of``."""
    return checksum_of(name, tensor.shape, tensor.dtype, shard_sums(tensor).tolist())


def checksum_of(
    name: str, shape: Sequence[int], dtype: torch.dtype, sums: Sequence[int]
) -> int:
    """The checksum of a tensor, below 2**128, which depends on its name and form too.

    Args:
        name: in the model's folder.
        shape: of the whole tensor.
        dtype: of it.
        sums: the two of ``shard_sums``, over all shards.
    """
    words, uppers = sums
    form = f"{name} {dtype} {tuple(shape)}".encode()
    own = int.from_bytes(hashlib.blake2b(form, digest_size=16).digest(), "little")
    return (own + words % 2**64 + (uppers % 2**64 << 64)) % 2**128


@torch.no_grad()
def shard_sums(shard: Tensor, *, start: int = 0, row: int | None = None) -> Tensor:
    """The two sums of a shard of a tensor, as ``[2]`` int64 on its device, which wrap around.

    Args:
        shard: of any dtype and shape.
        start: flat index of its first element in the whole tensor.
        row: how far the whole tensor's rows are apart, in elements; None where the rows here are
            whole.
    """
    size = shard.element_size()
    width = math.prod(shard.shape[1:])
    if row is None or row == width:
        width = row = shard.numel()
    sums = torch.zeros(2, dtype=torch.int64, device=shard.device)
    if not shard.numel():
        return sums
    rows = shard.contiguous().reshape(-1).view(torch.uint8).view(-1, width * size)
    for words, first, apart in _pieces(rows, start * size, row * size):
        sums += _weighted(words, first, apart)
    return sums


def _weighted(words: Tensor, first: int, apart: int) -> Tensor:
    """The two sums of words ``[r, c]``; other arguments as of ``_pieces``.

    Word (r, c) counts 2 (first + c) + 1 times for its column, and 2 apart r times for its row. So
    columns and rows are summed, which takes less time than to multiply each word.
    """
    num_rows, num_columns = words.shape
    rows, columns = words.new_empty(2, num_rows), words.new_zeros(2, num_columns)
    many = max(1, _BLOCK[words.device.type] // (_WORD * num_columns))
    for start in range(0, num_rows, many):
        block = words[start : start + many]
        for sums, part in enumerate((block, block >> 32)):
            rows[sums, start : start + many] = part.sum(1)
            columns[sums] += part.sum(0)
    of_column = 2 * (torch.arange(num_columns, device=words.device) + first) + 1
    of_row = 2 * apart * torch.arange(num_rows, device=words.device)
    return (columns * of_column).sum(1) + (rows * of_row).sum(1)


def _pieces(rows: Tensor, start: int, step: int) -> Iterator[tuple[Tensor, int, int]]:
    """Words ``[r, c]``, the place of the first of them in the whole, and how far their rows are
    apart there, in words. Those that are copied are of bounded size.

    Args:
        rows: ``[R, C]`` uint8, contiguous.
        start: place of the first byte in the whole.
        step: how many bytes the rows are apart there.
    """
    block = _BLOCK[rows.device.type]
    num_rows, width = rows.shape
    if (
        num_rows > 1
        and width <= block
        and not (width | step) % _WORD
        and _lies(rows, start)
    ):
        yield rows.view(torch.int64), start // _WORD, step // _WORD
        return
    for number, run in enumerate(rows):
        done = 0
        while done < width:
            place = start + number * step + done
            even = (width - done) // _WORD * _WORD
            # all pieces but the last end where a word of the whole does
            size = even if even and _lies(run[done:], place) else block - place % _WORD
            words = _words(run[done : done + size], place % _WORD)
            done += size
            first, end = place // _WORD, len(words) // _COLUMNS * _COLUMNS
            if end:
                yield words[:end].view(-1, _COLUMNS), first, _COLUMNS
            if end < len(words):
                yield words[end:][None], first + end, 0


def _lies(run: Tensor, place: int) -> bool:
    """Whether bytes, which begin at a place of the whole, can be read as its words where they are;
    their number aside."""
    return run.data_ptr() % _WORD == run.storage_offset() % _WORD == place % _WORD == 0


def _words(run: Tensor, before: int) -> Tensor:
    """Bytes ``[n]`` as words, with so many zeros before them; a copy where they do not lie so."""
    if _lies(run, before) and len(run) % _WORD == 0:
        return run.view(torch.int64)
    words = run.new_zeros(-(-(before + len(run)) // _WORD) * _WORD)
    words[before : before + len(run)] = run
    return words.view(torch.int64)
