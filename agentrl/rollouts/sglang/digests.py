"""What a server's own digest of each of its tensors must be, given the weights that it was sent.

SGLang (0.5.23, on a CPU) answers ``/weights_checker`` with the first 64 bits of the SHA-256 of each parameter's bytes,
under its own names, for each tensor-parallel rank. Its parameters are Hugging Face's, some of them fused and each
rank's cut out of the whole; the digests are therefore known here without asking for a single weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from agentrl.rollouts.sglang.weights import WeightArray

__all__ = ["differing", "unknown_names"]

_FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_ROWS_CUT = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
"""Cut along the first axis over the ranks; biases as well."""
_COLUMNS_CUT = ("o_proj", "down_proj")
"""Cut along the second axis; their biases are whole on each rank."""
_VOCAB_PADDING = 64


def differing(
    weights: Mapping[str, WeightArray], ranks: Sequence[Mapping[str, str]], num_kv_heads: int
) -> tuple[list[str], int]:
    """Compares a server's digests with the weights that it should hold.

    Args:
        weights: by Hugging Face name.
        ranks: the server's digests by its own names, for each tensor-parallel rank.
        num_kv_heads: of the model; with more ranks than these, several ranks hold the same one.

    Returns:
        The server's names whose digest is another, or which are not made of ``weights`` alone; and how many were
        compared.
    """
    wrong, compared = [], 0
    for rank, digests in enumerate(ranks):
        for served, digest in digests.items():
            parts = _parts(served, weights)
            if parts is None and served.startswith("lm_head."):
                continue  # tied: the embedding under a second name
            compared += 1
            if parts is None or _digest(parts, rank, len(ranks), num_kv_heads) != digest:
                wrong.append(served)
    return wrong, compared


def unknown_names(own: Collection[str], ranks: Sequence[Mapping[str, str]]) -> list[str]:
    """A server's names that are not made of the tensors named ``own``."""
    return [
        served
        for digests in ranks
        for served in digests
        if not served.startswith("lm_head.") and not all(name in own for name in _part_names(served))
    ]


def _part_names(served: str) -> list[str]:
    """The Hugging Face tensors that one of the server's is made of, in order."""
    for fused, names in _FUSED.items():
        if f".{fused}." in served:
            return [served.replace(f".{fused}.", f".{name}.") for name in names]
    return [served]


def _parts(served: str, weights: Mapping[str, WeightArray]) -> list[WeightArray] | None:
    names = _part_names(served)
    return [weights[name] for name in names] if all(name in weights for name in names) else None


def _digest(parts: Sequence[WeightArray], rank: int, num_ranks: int, num_kv_heads: int) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(np.ascontiguousarray(_shard(part, rank, num_ranks, num_kv_heads)).data)
    return sha.digest()[:8].hex()


def _shard(array: WeightArray, rank: int, num_ranks: int, num_kv_heads: int) -> npt.NDArray[np.uint8]:
    """The bytes that one rank holds."""
    if num_ranks == 1 and not _is_vocabulary(array.name):
        return array.data
    kind = array.name.split(".")[-2]
    rows = array.data.reshape(array.shape[0], -1)
    if _is_vocabulary(array.name):
        padded = -(-array.shape[0] // _VOCAB_PADDING) * _VOCAB_PADDING
        each = padded // num_ranks
        own = rows[rank * each : (rank + 1) * each]
        return np.concatenate([own, np.zeros((each - own.shape[0], rows.shape[1]), dtype=np.uint8)])
    if kind in ("k_proj", "v_proj") and num_ranks > num_kv_heads:
        rank, num_ranks = rank * num_kv_heads // num_ranks, num_kv_heads
    if kind in _ROWS_CUT:
        each = rows.shape[0] // num_ranks
        return rows[rank * each : (rank + 1) * each]
    if kind in _COLUMNS_CUT and len(array.shape) > 1:
        each = rows.shape[1] // num_ranks
        return rows[:, rank * each : (rank + 1) * each]
    return array.data


def _is_vocabulary(name: str) -> bool:
    return name.endswith(("embed_tokens.weight", "lm_head.weight"))
