"""One rank of a world: adapters in layouts of that size, in a file.

Run as ``python -m tests.training.lora_rank RANK WORLD_SIZE PORT FOLDER``, with models in the
folder.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agentrl.algorithms import make_algorithm
from agentrl.engines.checksum import tensor_checksum
from agentrl.training import Actor, ActorSpec, DistSpec, OptimSpec, join, leave
from agentrl.training.fsdp.weights import whole_tensor
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.parallel.process_group import Sharding
from agentrl.types import SegmentKind
from tests.kit.waiting import DEADLINE_S
from tests.training.harness import make_batch
from tests.training.layout_rank import Ranks

MOVING = OptimSpec(lr=1e-2, betas=(0.0, 0.0))
"""AdamW whose first moment is the gradient itself."""
SIZES: dict[str, dict[str, int]] = {"fsdp": {}, "tp": {"tp": 2}, "sp": {"sp": 2}, "ep": {}}
LAYOUTS = {"untied": "fsdp tp sp", "one_head": "fsdp tp sp", "mixture": "fsdp tp ep"}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "embed_tokens"]


def result(model: Path, ranks: Ranks, sharding: Sharding, folder: Path) -> dict[str, Any]:
    """Losses, the last gradients and what is published after three steps; and whether a checkpoint
    goes on."""
    batch = make_batch(kind=SegmentKind.TARGET)
    more = ["gate_up_proj" if model.name == "mixture" else "up_proj", "down_proj"]
    lora = LoraSpec(rank=3, targets=[*ATTENTION, *more])
    sft = make_algorithm("sft")
    spec = ActorSpec(str(model), sft, MOVING, dtype="float64", lora=lora, sharding=sharding)
    actor = Actor(spec, ranks.place)
    losses = [ranks.update(actor, batch, 30)["policy/loss"] for _ in range(3)]
    (optimizer,) = actor.backend.optimizers
    gradients = {
        name: whole_tensor(optimizer.state[one]["exp_avg"]).clone()
        for name, one in actor.backend.state().items()
        if one.requires_grad
    }
    published = {name: tensor.clone() for name, tensor in actor.weights()}
    sums = {name: tensor_checksum(name, one) for name, one in published.items()}
    agree = sums == actor.checksum()
    actor.save(folder)
    resumed = Actor(spec, ranks.place)
    resumed.load(folder)
    ahead = [ranks.update(one, batch, 30) for one in (actor, resumed)]
    return {
        "losses": losses,
        "gradients": gradients,
        "weights": published,
        "sums agree": agree,
        "goes on": ahead[0] == ahead[1] and actor.checksum() == resumed.checksum(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = DistSpec(
        rank=int(sys.argv[1]),
        world_size=int(sys.argv[2]),
        port=int(sys.argv[3]),
        timeout_s=DEADLINE_S,
    )
    join(here)
    out = Path(sys.argv[4])
    found = {}
    for name, layouts in LAYOUTS.items():
        for layout in layouts.split():
            if here.world_size == 1 and layout != "fsdp":
                continue
            place = replace(here, **SIZES[layout])
            sharding = Sharding(ep=2 if layout == "ep" else 1)
            to = out / f"checkpoint-{here.world_size}-{name}-{layout}"
            found[f"{name} {layout}"] = result(out / name, Ranks(place), sharding, to)
    if here.rank == 0:
        torch.save(found, out / f"world{here.world_size}.pt")
    leave()
