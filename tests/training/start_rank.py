"""One of two ranks that start a role from a folder: its shards, and what it read of the folder.

Run as ``python -m tests.training.start_rank RANK WORLD_SIZE PORT ROLE FOLDER OUT``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from agentrl.algorithms import make_algorithm
from agentrl.training import ActorSpec, CriticSpec, DistSpec, join, leave
from agentrl.training.models.folder_weights import FolderWeights
from tests.kit.waiting import DEADLINE_S


def start(role: str, folder: str, place: DistSpec) -> dict[str, Any]:
    """Whole weights by name, this rank's buffers, and the ranges that it read."""
    join(place)
    opened: list[FolderWeights] = []
    fill = FolderWeights.fill

    def keep(weights: FolderWeights, device: torch.device) -> None:
        opened.append(weights)
        fill(weights, device)

    FolderWeights.fill = keep  # type: ignore[method-assign]
    try:
        if role == "critic":
            built: Any = CriticSpec(folder, make_algorithm("ppo"), head_seed=5).build(place)
        else:
            built = ActorSpec(folder, make_algorithm("sft")).build(place)
    finally:
        FolderWeights.fill = fill  # type: ignore[method-assign]
    state = built.backend.state()
    return {
        "weights": {name.removeprefix("hf."): _whole(one) for name, one in state.items()},
        "buffers": dict(built.backend.model.hf.named_buffers()),
        "read": [weights.read for weights in opened],
        "published": dict(built.backend.weights(torch.float32)),
        "checksum": built.checksum(),
    }


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


if __name__ == "__main__":
    torch.set_num_threads(1)
    number, size, port = (int(argument) for argument in sys.argv[1:4])
    here = DistSpec(rank=number, world_size=size, port=port, timeout_s=DEADLINE_S)
    names, folders, out = sys.argv[4].split(","), sys.argv[5].split(","), Path(sys.argv[6])
    for place_in_list, (name, path) in enumerate(zip(names, folders, strict=True)):
        torch.save(start(name, path, here), out / f"{place_in_list}-{number}.pt")
    leave()
