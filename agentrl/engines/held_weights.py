"""Held weights: holds what servers say of their weights against what they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.visual.": "visual.",
}
"""Of models that see: what folders and servers begin names with, and the shorter form."""


def plain_name(name: str) -> str:
    """A tensor's name without what a folder or a server puts before it."""
    found = (
        short + name.removeprefix(long)
        for long, short in _PREFIXES.items()
        if name.startswith(long)
    )
    return next(found, name)


class HeldTensor(NamedTuple):
    """A tensor as a server holds it.

    Args:
        name: its own name, and where of the server it lies, for messages.
        parts: the Hugging Face tensors that it is made of, by plain names.
    """

    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """What servers hold after an update.

    Args:
        sent: checksum of each Hugging Face tensor that they were sent.
        told: the digests that all of them told alike; empty where they tell none.
    """

    sent: Mapping[str, int]
    told: Mapping[HeldTensor, str]

    def fault_since(self, earlier: HeldWeights) -> str:
        """The first tensor whose digest did not follow what was sent since ``earlier``, whose bits
        or digest alone changed; empty where all of them did.

        Ranks that share a tensor are one: a change may lie in the part of a single rank.
        """
        sent = {plain_name(name) for name in self.sent}
        changed = {
            plain_name(name)
            for name, value in self.sent.items()
            if earlier.sent.get(name) != value
        }
        moved: dict[tuple[str, ...], bool] = {}
        for held, digest in self.told.items() if earlier.told else ():
            has_moved = moved.get(held.parts, False) or earlier.told.get(held) != digest
            moved[held.parts] = has_moved
        for parts, has_moved in moved.items():
            if sent >= set(parts) and has_moved == changed.isdisjoint(parts):
                found = "other bits than before" if has_moved else "the bits of before"
                given = "the same" if has_moved else "new"
                return f"{found} in {' + '.join(parts)}, of which {given} ones were sent"
        return ""
