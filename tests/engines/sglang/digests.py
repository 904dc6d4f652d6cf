"""What a server's own digest of each of its tensors must be, given the weights that it was sent:
the oracle of the tests that send weights to a real server.

SGLang (0.5.23, on a CPU) answers ``/weights_checker`` with the first 64 bits of the SHA-256 of each
parameter's bytes, under its own names, for each tensor-parallel rank. Its parameters are Hugging
Face's, some of them fused and each rank's cut out of the whole; the digests are therefore known
here without asking for a single weight.

On a CPU every size that is cut is first made up with zeros to what the ranks can share: the
vocabulary to a multiple of 64, the MLP's width to 32 a rank, attention to whole KV heads a rank
(``configs/update_config.py`` of SGLang).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import torch

from agentrl.engines.servers.client import read_config
from agentrl.engines.servers.program.tensor_names import part_names
from agentrl.engines.sglang import SGLangEngine
from agentrl.engines.weights import WeightArray
from tests.kit.waiting import DEADLINE_S

ON_GPU = torch.cuda.is_available()
"""Whether the servers of these tests are on a GPU: there they start where one is."""

_VOCABULARY = ("embed_tokens", "lm_head")
_HEADS = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_COLUMNS_CUT = ("o_proj", "down_proj")
"""Cut along the second axis, and their biases not at all; everything else along the first, biases
as well.
"""
_VOCAB_PADDING = 64
_MLP_PADDING = 32


def require_sent(engine: SGLangEngine, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Each of an engine's servers holds exactly these weights of Hugging Face names, bit by bit, by
    its own digests.

    On a GPU their hash is one of SGLang's own: there the engine's comparison alone is asked.
    """
    if ON_GPU:
        engine.checksum()
        return
    state = engine.state
    arrays: dict[str, WeightArray] = {
        name: WeightArray(
            name,
            "float32",
            tuple(own.shape),
            own.detach().reshape(-1).view(torch.uint8).numpy(),
        )
        for name, own in weights
    }
    for server in engine.pool.serving:
        answer = httpx.post(
            f"{server.client.url}/weights_checker",
            json={"action": "checksum"},
            timeout=DEADLINE_S,
            trust_env=False,
        ).json()
        ranks = [rank["checksums"] for rank in answer["ranks"]]
        wrong, compared = differing(arrays, ranks, read_config(state.kind.place.model))
        assert compared
        assert not wrong


def differing(
    weights: Mapping[str, WeightArray],
    ranks: Sequence[Mapping[str, str]],
    config: Mapping[str, Any],
) -> tuple[list[str], int]:
    """Compares a server's digests with the weights that it should hold.

    Args:
        weights: by Hugging Face name.
        ranks: the server's digests by its own names, for each tensor-parallel rank.
        config: of the model.

    Returns:
        The server's names whose digest is another, or which are not made of ``weights`` alone; and
        how many were compared.
    """
    wrong = []
    compared = 0
    for rank, digests in enumerate(ranks):
        for served, digest in digests.items():
            parts = _parts(served, weights, config)
            if parts is None and (
                served.startswith("lm_head.") or ".rotary_emb." in served
            ):
                continue
            compared += 1
            if parts is None or _digest(parts, rank, len(ranks), config) != digest:
                wrong.append(served)
    return wrong, compared


def _parts(
    served: str, weights: Mapping[str, WeightArray], config: Mapping[str, Any]
) -> list[WeightArray] | None:
    names = part_names(served, config)
    known = names and all(name in weights for name in names)
    return [weights[name] for name in names] if known else None


def _digest(
    parts: Sequence[WeightArray], rank: int, num_ranks: int, config: Mapping[str, Any]
) -> str:
    num_kv_heads = config["num_key_value_heads"]
    sha = hashlib.sha256()
    for part in parts:
        sha.update(np.ascontiguousarray(_shard(part, rank, num_ranks, num_kv_heads)).data)
    return sha.digest()[:8].hex()


def _shard(
    array: WeightArray, rank: int, num_ranks: int, num_kv_heads: int
) -> npt.NDArray[Any]:
    """What one rank holds."""
    kind = array.name.rpartition(".")[0].rpartition(".")[2]
    axis = int(kind in _COLUMNS_CUT)
    if kind not in _VOCABULARY + _HEADS + _MLP or axis >= len(array.shape):
        return array.data
    width = np.uint32 if array.dtype == "float32" else np.uint16
    whole = np.moveaxis(array.data.view(width).reshape(array.shape), axis, 0)
    each = _rank_size(kind, array.shape[axis], num_ranks, num_kv_heads)
    own = whole[rank * each : (rank + 1) * each]
    if short := each - own.shape[0]:
        own = np.concatenate([own, np.zeros((short, *own.shape[1:]), dtype=own.dtype)])
    return np.moveaxis(own, 0, axis)


def _rank_size(kind: str, size: int, num_ranks: int, num_kv_heads: int) -> int:
    """How much of the cut axis each rank holds, what it is made up with included."""
    if kind in _HEADS:
        return size // num_kv_heads * -(-num_kv_heads // num_ranks)
    if kind in _MLP:
        return _MLP_PADDING * -(-size // (_MLP_PADDING * num_ranks))
    padded = _VOCAB_PADDING * -(-size // _VOCAB_PADDING)
    if padded % num_ranks:
        multiple = _VOCAB_PADDING * num_ranks
        padded = multiple * -(-size // multiple)
    return padded // num_ranks
