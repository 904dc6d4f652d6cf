"""Residency: which parts of a role lie on its device, and which wait in the host's memory.

- A method of a role says what it needs (``register(..., needs=...)``). The table brings that to the
  device before the method, and evicts what is offloaded behind it.
- Storages are emptied and filled again in place, so that modules, FSDP and optimizers keep their
  tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from agentrl.training.models.packed_model import Offload
from agentrl.training.parallel.shards import local
from agentrl.types import Part

OFFLOADED: Mapping[Offload, frozenset[Part]] = {
    "none": frozenset(),
    "optimizer": frozenset({"optimizer"}),
    "all": frozenset({"params", "optimizer"}),
}


class Residency:
    """The table of one role on one rank.

    Args:
        tensors: of each part, as they are at the time.
        is_frozen: nothing changes, so that the host's copy of it stays valid.

    Attributes:
        always: the parts that are evicted when nothing holds them (``train.offload``).
        offloaded: those, and what is kept away for a while.
    """

    def __init__(
        self, tensors: Mapping[Part, Callable[[], Iterable[Tensor]]], *, is_frozen: bool
    ) -> None:
        self.always: frozenset[Part] = frozenset()
        self.offloaded: frozenset[Part] = frozenset()
        self._tensors = tensors
        self._is_frozen = is_frozen
        self._holds: Counter[Part] = Counter()
        self._evicted: set[Part] = set()
        self._kept: dict[Part, list[tuple[Tensor, Tensor]]] = {}

    @contextmanager
    def holding(self, *needs: Part) -> Iterator[None]:
        """Has parts on the device within; contexts may nest. After an error they stay there."""
        self._holds.update(needs)
        for part in needs:
            self.load(part)
        try:
            yield
        finally:
            self._holds.subtract(needs)
        self.evict(*(self.offloaded & set(needs)))

    def keep_away(self, parts: Collection[Part]) -> None:
        """From now on these wait in the host's memory too, but while something holds them; what
        waits no more comes back with the first that needs it."""
        self.offloaded = self.always | frozenset(parts)
        self.evict(*self.offloaded)

    @torch.no_grad()
    def evict(self, *parts: Part) -> None:
        """Frees the device memory of parts that nothing holds.

        Raises:
            TrainingError: weights are gathered.
        """
        for part in parts:
            if self._holds[part] > 0 or part in self._evicted:
                continue
            if not (self._is_frozen and part in self._kept):
                wholes = (_whole(tensor) for tensor in self._tensors[part]())
                self._kept[part] = [
                    (whole, _to_host(whole)) for whole in wholes if whole.numel()
                ]
            for whole, _ in self._kept[part]:
                whole.untyped_storage().resize_(0)
            self._evicted.add(part)

    @torch.no_grad()
    def load(self, part: Part) -> None:
        """Brings an evicted part back, bit by bit the same."""
        if part not in self._evicted:
            return
        self._evicted.remove(part)
        kept = self._kept[part] if self._is_frozen else self._kept.pop(part)
        for whole, host in kept:
            whole.untyped_storage().resize_(host.numel())
            whole.copy_(host, non_blocking=True)
        if any(whole.is_cuda for whole, _ in kept):
            # The copy is done before the host's memory, from which it reads, may be freed.
            torch.cuda.synchronize()


def _whole(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor or of its shard, as bytes."""
    own = local(tensor)
    whole = torch.empty(0, dtype=torch.uint8, device=own.device)
    whole.set_(own.untyped_storage())
    return whole


def _to_host(tensor: Tensor) -> Tensor:
    kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    # The host waits for this copy: the device's memory is freed right behind it.
    return kept.copy_(tensor)
