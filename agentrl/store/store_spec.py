"""Store spec: what a run keeps of its trajectories beside their tokens (docs/annotations.md)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from agentrl.types.section import Section

Detail: TypeAlias = Literal["basic", "tokens", "full"]
States: TypeAlias = Literal["off", "end", "turn"]
NUM_ALTERNATIVES = 5
"""Most likely tokens that are kept beside each sampled one at ``detail: full``."""


class StoreSpec(Section):
    """What the run keeps of each trajectory beside its tokens."""

    detail: Detail = "tokens"
    """What training learned of each trajectory (docs/annotations.md has the columns). ``basic``
    keeps its step and credit; ``tokens`` also the numbers that made the loss, for each sampled
    token, 22 bytes before compression; ``full`` also entropies and the reference's logprobs, 30
    bytes, and the engine's 5 most likely tokens in its place, 30 bytes more."""
    states: States = "off"
    """When the changed files of an episode's sandbox are kept: after each ``turn``, at the ``end``,
    or never. At most 1 MiB a file, 16 MiB an episode, and 1,000 files a turn (docs/envs.md)."""
