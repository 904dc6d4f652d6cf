"""Weight verification: after a publish the engine's weights are compared with the trainer's, in two
ways.

- Checksums of all tensors: the engine's own, or those of what servers were sent. Servers that tell
  digests of their own must tell the same ones.
- The probe: log-probabilities of a fixed sequence, by every server, against the trainer's own
  forward. It needs nothing of an engine but ``score``, and sees what a server computes with, on any
  device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from agentrl.engines import EngineControl, ServedDtype
from agentrl.engines.probe import Probe, ProbeNoise, probe_ids
from agentrl.engines.weights import num_experts, read_config
from agentrl.errors import TrainingError, WeightMismatchError
from agentrl.rollouts.batching import make_batch
from agentrl.types import (
    Batch,
    BatchShard,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    frozen_ints,
)

if TYPE_CHECKING:
    from agentrl.training import Actor


@dataclass(frozen=True, slots=True, eq=False)
class TrainerReference:
    """The trainer's side of a comparison: checksums by tensor, and the probe."""

    checksum: Mapping[str, int]
    probe: Probe


def trainer_reference(
    actor: Actor, dtype: ServedDtype, checksum: Mapping[str, int]
) -> TrainerReference:
    """The trainer's side, by a forward over the probe alone; called on all ranks alike.

    Args:
        actor: what was published.
        dtype: as served.
        checksum: of the actor's tensors in it.

    Raises:
        TrainingError: its logprobs are not finite; it names the weights at fault.
    """
    ids = probe_ids(actor.facts().vocab_size)
    found = actor.logprobs(BatchShard(_one_sample(ids), np.zeros(1, np.int64), ((0,),)))
    # Of a pipeline the last stage answers, and each rank with an engine compares.
    told = torch.from_numpy(found["old_logprobs"]).to(actor.device)
    if not actor.backend.is_first:
        told.zero_()
    dist.all_reduce(told)
    column = told.cpu().numpy()
    if not np.isfinite(column[1:]).all():
        # on every rank alike
        raise TrainingError(_not_finite(actor, dtype))
    routed = bool(num_experts(read_config(actor.spec.model_path)))
    return TrainerReference(checksum, Probe(ids, column[1:].astype(np.float32), routed))


def _not_finite(actor: Actor, dtype: ServedDtype) -> str:
    """Which weights make logprobs NaN or infinite; by every rank, since they are gathered."""
    found = {
        name: (int((~tensor.isfinite()).sum()), tensor.numel())
        for name, tensor in actor.weights(dtype)
    }
    broken = {name: bad for name, (bad, _) in found.items() if bad}
    if not broken:
        return (
            f"the trainer's own logprobs are NaN or infinite, though its weights are finite in "
            f"{dtype}: the model overflows; set model.dtype=float32, or lower optim.lr"
        )
    name = next(iter(broken))
    return (
        f"the trainer's weights are NaN or infinite in {len(broken)} of {len(found)} tensors, "
        f"first {name!r} ({broken[name]:,} of {found[name][1]:,} numbers); go on from an earlier "
        "checkpoint with a lower optim.lr, or look at model.path where no step was taken yet"
    )


def verify_probe(
    engine: EngineControl, probe: Probe, dtype: ServedDtype, version: int, noise: ProbeNoise
) -> None:
    """Every server computes what the trainer computes, up to the rounding of the served dtype.

    Raises:
        WeightMismatchError: a server's logprobs differ; it is named.
    """
    for server, logprobs in engine.score(probe.token_ids).items():
        if difference := noise.difference(server, probe, logprobs, dtype):
            raise WeightMismatchError(
                f"after publish({version}) {server} computes with other weights than the trainer: "
                f"{difference}; restart it, and look at its log",
            )


def verify_checksums(
    trainer: Mapping[str, int], engine: Mapping[str, int], version: int
) -> None:
    """Every tensor of the engine has the trainer's bits.

    Raises:
        WeightMismatchError: a tensor differs, or is on one side alone.
    """
    differing = sorted(
        name
        for name in trainer.keys() | engine.keys()
        if trainer.get(name) != engine.get(name)
    )
    if differing:
        raise WeightMismatchError(
            f"after publish({version}) the engine's weights differ from the trainer's in "
            f"{len(differing)} of {len(trainer)} tensors, first {differing[0]!r}",
        )


def _one_sample(ids: tuple[int, ...]) -> Batch:
    """The probe as a batch of one sample, each token but the first as if the policy had made it."""
    prompt = Segment(SegmentKind.PROMPT, frozen_ints(ids[:1]))
    zeros = np.zeros(len(ids) - 1, np.float32)
    made = Segment(SegmentKind.POLICY, frozen_ints(ids[1:]), zeros, 0)
    turn = Turn(0, None, (prompt,), (made,), "", {"role": "assistant", "content": ""})
    task = Task("probe")
    episode = Trajectory(task, 0, 0, 0, "train", (turn,), Status("terminated"), reward=0.0)
    return make_batch(
        [TrajectoryGroup(0, task, (episode,))], credit=np.zeros(1, np.float32)
    )
