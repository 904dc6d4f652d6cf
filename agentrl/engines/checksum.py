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
"""Bytes that are summed at once: on a CPU they stay in its cache with their weights."""


def tensor_checksum(name: str, tensor: Tensor) -> int:
    """The checksum of a whole tensor; see ``checksum_of``."""
    return checksum_of(name, tensor.shape, tensor.dtype, shard_sums(tensor).tolist())


def checksum_of(name: str, shape: Sequence[int], dtype: torch.dtype, sums: Sequence[int]) -> int:
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
        weights = torch.arange(2 * first + 1, 2 * (first + words.shape[1]), 2, device=words.device)
        if words.shape[0] > 1:
            number = torch.arange(words.shape[0], device=words.device)
            weights = weights + 2 * apart * number[:, None]
        sums += torch.stack([_product(words, weights), _product(words >> 32, weights)])
    return sums


def _product(words: Tensor, weights: Tensor) -> Tensor:
    """Σ words · weights: by ``dot`` where torch has it for integers, since it takes less time."""
    if words.is_cuda:
        return (words * weights).sum()
    return torch.dot(words.reshape(-1), weights.reshape(-1))


def _pieces(rows: Tensor, start: int, step: int) -> Iterator[tuple[Tensor, int, int]]:
    """Words ``[r, c]`` of bounded size, the place of the first of them in the whole, and how far
    their rows are apart there, in words.

    Args:
        rows: ``[R, C]`` uint8, contiguous.
        start: place of the first byte in the whole.
        step: how many bytes the rows are apart there.
    """
    block = _BLOCK[rows.device.type]
    num_rows, width = rows.shape
    if num_rows > 1 and width <= block and not (width | start | step) % _WORD:
        many = block // width
        for first in range(0, num_rows, many):
            some = rows[first : first + many]
            words = _words(some.reshape(-1), 0).view(len(some), -1)
            yield words, (start + first * step) // _WORD, step // _WORD
        return
    for number, run in enumerate(rows):
        done = 0
        while done < width:
            place = start + number * step + done
            # all pieces but the last end where a word of the whole does
            piece = run[done : done + block - place % _WORD]
            yield _words(piece, place % _WORD)[None], place // _WORD, 0
            done += len(piece)


def _words(run: Tensor, before: int) -> Tensor:
    """Bytes ``[n]`` as words, with so many zeros before them; a copy where they do not lie so."""
    lies = run.data_ptr() % _WORD == run.storage_offset() % _WORD == 0
    if lies and not before and len(run) % _WORD == 0:
        return run.view(torch.int64)
    words = run.new_zeros(-(-(before + len(run)) // _WORD) * _WORD)
    words[before : before + len(run)] = run
    return words.view(torch.int64)
