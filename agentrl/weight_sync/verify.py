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

from agentrl.engines import EngineControl, ServedDtype
from agentrl.engines.probe import Probe, probe_ids
from agentrl.errors import WeightMismatchError
from agentrl.types import Batch, BatchShard, SegmentKind

if TYPE_CHECKING:
    from agentrl.training import Actor


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The trainer's side of a comparison: checksums by tensor, and the probe."""

    checksum: Mapping[str, int]
    probe: Probe


def trainer_reference(actor: Actor, dtype: ServedDtype) -> Reference:
    """The trainer's side, by a forward over the probe alone; called on all ranks alike."""
    checksum = actor.checksum(dtype)
    ids = probe_ids(actor.facts().vocab_size)
    column = actor.logprobs(BatchShard(_one_sample(ids), np.zeros(1, np.int64), ((0,),)))[
        "old_logprobs"
    ]
    return Reference(checksum, Probe(ids, column[1:]))


def verify_probe(engine: EngineControl, probe: Probe, dtype: ServedDtype, version: int) -> None:
    """Every server computes what the trainer computes, up to the rounding of the served dtype.

    Raises:
        WeightMismatchError: a server's logprobs differ; it is named.
    """
    for server, logprobs in engine.score(probe.token_ids).items():
        if difference := probe.difference(logprobs, dtype):
            raise WeightMismatchError(
                f"after publish({version}) {server} computes with other weights than the trainer: "
                f"{difference}; restart it, and look at its log",
            )


def verify_checksums(trainer: Mapping[str, int], engine: Mapping[str, int], version: int) -> None:
    """Every tensor of the engine has the trainer's bits.

    Raises:
        WeightMismatchError: a tensor differs, or is on one side alone.
    """
    differing = sorted(
        name for name in trainer.keys() | engine.keys() if trainer.get(name) != engine.get(name)
    )
    if differing:
        raise WeightMismatchError(
            f"after publish({version}) the engine's weights differ from the trainer's in "
            f"{len(differing)} of {len(trainer)} tensors, first {differing[0]!r}",
        )


def _one_sample(ids: tuple[int, ...]) -> Batch:
    """The probe as a batch of one sample, each token but the first as if the policy had made it."""
    size = len(ids)
    zeros = np.zeros(size, np.float32)
    one = np.zeros(1, np.int32)
    mask = np.ones(size, np.float32)
    mask[0] = 0.0
    return Batch(
        token_ids=np.array(ids, np.int32),
        kind=np.full(size, SegmentKind.POLICY, np.int8),
        loss_mask=mask,
        rollout_logprobs=zeros,
        policy_versions=np.zeros(size, np.int32),
        turn_index=np.zeros(size, np.int32),
        cu_seqlens=np.array([0, size], np.int32),
        trajectory=one,
        temperature=np.ones(1, np.float32),
        turn_trajectory=one,
        turn_reward=zeros[:1],
        turn_credit=zeros[:1],
        state_key=np.zeros(1, np.uint64),
        group=one,
        group_index=np.zeros(1, np.int64),
        rollout_index=one,
        reward=zeros[:1],
        credit=zeros[:1],
        truncated=np.zeros(1, np.bool_),
    )
