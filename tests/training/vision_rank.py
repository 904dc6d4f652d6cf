"""One of two ranks that train a model which sees: gradients, and how many images it prepared.

Run as ``python -m tests.training.vision_rank RANK WORLD_SIZE PORT MODEL OUT``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from agentrl.training import DistSpec, OptimSpec, leave
from agentrl.training.vision.vision_tower import VisionMode
from tests.kit.waiting import DEADLINE_S
from tests.training.vision_batch import make_actor, make_case, own_gradients

SPLITS: dict[str, Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]] = {
    # the second rank shows no image, and its last micro-batch is a filler
    "apart": (((0, 1, 2, 3), ((0, 1), (2, 3))), ((4, 5), ((0, 1), ()))),
    # in each micro-batch one of them shows none
    "by turns": (((0, 2, 4), ((0, 1), (2,))), ((5, 1, 3), ((0,), (1, 2)))),
}
"""Of each rank the samples, and their places by micro-batch."""


def run(model: Path, out: Path, place: DistSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for vision in get_args(VisionMode):
        for name, parts in SPLITS.items():
            folder = out / f"{vision} {name}"
            case = make_case(model, folder)
            actor = make_actor(
                model, folder, place, OptimSpec(lr=1e-3, clip_grad_norm=None), vision=vision
            )
            rows, micro_batches = parts[place.rank]
            shard = case.shard(rows, *micro_batches)
            key = vision, name
            found[key] = {
                "logprobs": actor.logprobs(shard)["old_logprobs"],
                "gradients": own_gradients(actor, case, shard),
            }
            tower = actor.backend.model.tower
            found[key]["prepared"] = tower.pixels.prepared
            actor.backend.step(1.0, None)
            found[key]["weights"] = dict(actor.backend.weights(torch.float32))
            actor.save(folder / "actor")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    number, size, port = map(int, sys.argv[1:4])
    here = DistSpec(rank=number, world_size=size, port=port, timeout_s=DEADLINE_S)
    target = Path(sys.argv[5])
    torch.save(run(Path(sys.argv[4]), target, here), target / f"{number}.pt")
    leave()
