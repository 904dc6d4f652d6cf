"""Memory count: the bytes that a rank holds in a training step, on paper or live.

- On paper the step runs under FakeTensorMode with torch's fake process group: nothing is computed
  and nothing is allocated, whatever the model and the number of ranks.
- Parameters, gradients and optimizer are counted from the shards. The peak of a forward and
  backward pass is that of all live storages, whose gathered layers come and go.
- The experts of a mixture have even loads on paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from agentrl.training import DistSpec, OptimSpec
from agentrl.training.backends.fsdp2 import Fsdp2Backend
from agentrl.training.backends.packed_backend import PackedBackend
from agentrl.training.data.kernel_attention import Boundaries
from agentrl.training.data.packing import Packed
from agentrl.training.models import mixture, packed_model
from agentrl.training.models.lora import Lora
from agentrl.training.models.mixture import Mixture
from agentrl.training.models.peft_folder import AdapterRecord
from agentrl.training.models.policy_model import PolicyModel
from agentrl.training.models.trunk import Recompute, wrap_blocks
from agentrl.training.parallel.collectives import exchange_rows
from agentrl.training.parallel.process_group import FULL, SHARED, Sharding
from benchmarks.trainer.shapes import SHAPES, packed_row, random_model

__all__ = ["GIB", "Count", "LiveStorages", "count_step", "on_paper"]

GIB = 1 << 30
SMALL = 1 << 12  # bytes; storages below it are left out


@dataclass(frozen=True, slots=True)
class Count:
    """Bytes of one rank.

    Args:
        parameters, gradients, optimizer: its shards.
        gathered: the largest set of weights that is gathered at once.
        step_peak: all live storages at the peak of forward and backward, without the optimizer.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    step_peak: int

    @property
    def activations(self) -> int:
        """What of the peak is neither a shard nor a gathered weight: kept and passing results, and
        gradients on their way."""
        return self.step_peak - self.parameters - self.gradients - self.gathered

    @property
    def shards(self) -> int:
        """Parameters, gradients and optimizer."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def checkpoint(self) -> int:
        """What is trained, as large as its gradients, and its optimizer."""
        return self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """At the peak, the optimizer included."""
        return self.step_peak + self.optimizer


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operators return, and the most that lived at once.

    Args:
        known: tensors that live already.
    """

    def __init__(self, known: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live = WeakIdKeyDictionary()
        self.peak = 0
        for tensor in known:
            self._add(tensor)

    def _add(self, tensor: Tensor) -> None:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        if storage.nbytes() >= SMALL:
            self._live[storage] = None

    @property
    def now(self) -> int:
        """Bytes that live."""
        return sum(storage.nbytes() for storage in list(self._live))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        fresh = False
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and not isinstance(leaf, DTensor):
                before = len(self._live)
                self._add(leaf)
                fresh |= len(self._live) != before
        if fresh or func is torch.ops.aten.copy_.default:
            self.peak = max(self.peak, self.now)
        return found


def count_step(backend: PackedBackend, packed: Packed, optim: OptimSpec) -> Count:
    """Runs the second of two micro-batches of a step, whose gradients are there already.

    Args:
        backend: of a policy.
        packed: the row of both.
        optim: AdamW.
    """
    backend.optimize_by(optim)
    _pass(backend, packed)
    state = list(backend.state().values())
    trained = [one for one in state if one.requires_grad]
    gradients = [one.grad for one in trained if one.grad is not None]
    held = _bytes(state), _bytes(gradients)
    live = LiveStorages([*state, *gradients, *_tensors(packed)])
    with live:
        _pass(backend, packed)
    # two moments as large as the weights that move, and the step
    optimizer = 2 * _bytes(trained) + 4 * len(trained)
    return Count(*held, optimizer, _largest_gathered(backend), live.peak)


def _pass(backend: PackedBackend, packed: Packed) -> None:
    backend.run([packed], lambda _, answer, __: -answer[0].sum() / 1000)


def _bytes(tensors: Sequence[Tensor]) -> int:
    local = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in local)


def _largest_gathered(backend: PackedBackend) -> int:
    """A layer while the next one is gathered, beside what is gathered for the whole pass."""
    sizes: dict[nn.Module, int] = {}
    for module in backend.model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            params = [] if group is None else group.fsdp_params
            sizes[module] = sum(one._orig_size.numel() for one in params)
    root = sizes.pop(backend.model, 0)
    for block in backend.model.blocks():
        # experts that are gathered apart are so while their layer is
        inner = [one.experts for one in block.modules() if isinstance(one, Mixture)]
        sizes[block] += sum(sizes.pop(one, 0) for one in inner)
    itemsize = int(backend.dtype.itemsize)
    return (root + sum(sorted(sizes.values())[-2:])) * itemsize


def _tensors(packed: Packed) -> Iterator[Tensor]:
    for one in fields(packed):
        value = getattr(packed, one.name)
        if isinstance(value, Tensor):
            yield value


def random_policy(shape: str, attention: str, recompute: Recompute) -> PolicyModel:
    """A policy of random weights, as a GPU would run it."""
    gpu = torch.device("cuda")  # no patches of a CPU
    model = PolicyModel(random_model(shape, attention), attention, gpu)
    if recompute:
        wrap_blocks(model.blocks(), recompute=recompute, compiles=False)
    return model


def adapters(model: PolicyModel, rank: int) -> AdapterRecord:
    """Of that rank, beside every linear layer of the blocks."""
    layers = tuple(
        name
        for name, module in model.hf.named_modules()
        if isinstance(module, nn.Linear) and module is not model.head
    )
    return AdapterRecord(rank, 32.0, layers, None, (), "", "")


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """As ``Module.to``, which fake tensors have not."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, one in module._parameters.items():
            if one is not None:
                if one not in made:
                    made[one] = nn.Parameter(one.detach().to(dtype))
                module._parameters[name] = made[one]


@contextmanager
def _even_loads() -> Iterator[None]:
    """What of a mixture depends on the values of tensors, with even loads in their place."""
    with (
        # the gradient is of the whole stack here, too
        patch.object(
            mixture, "grouped_product", lambda rows, matrices, _: rows @ matrices[0]
        ),
        patch.object(Mixture, "_on_ranks", _on_even_ranks),
        patch.object(Fsdp2Backend, "_loads", lambda _: None),
    ):
        yield


def _on_even_ranks(one: Mixture, pairs: Tensor, ends: Tensor) -> Tensor:
    ranks = one._ranks
    assert ranks is not None
    sizes = [pairs.shape[0] // ranks.size()] * ranks.size()
    order = torch.arange(pairs.shape[0])
    come = mixture.spread(exchange_rows(pairs, sizes, sizes, ranks), order, order, 1)
    made = mixture.spread(one.experts(come, ends), order, order, 1)
    return exchange_rows(made, sizes, sizes, ranks)


@contextmanager
def _fake_group(rank: int, world_size: int) -> Iterator[None]:
    SHARED.clear()  # a mesh of another group
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        SHARED.clear()
        dist.destroy_process_group()


def on_paper(
    shape: str,
    world_size: int,
    lengths: Sequence[int],
    *,
    recompute: Recompute = True,
    dtype: torch.dtype = torch.bfloat16,
    attention: str = "varlen",
    sharding: Sharding = FULL,
    rank: int = 0,
) -> Count:
    """The count of rank 0.

    Args:
        shape: of the model.
        world_size: ranks, over which it is sharded.
        lengths: of the samples of a row.
        recompute: layers.
        dtype: of the forward pass.
        attention: a kernel's own fake result stands for it.
        sharding: over the ranks.
        rank: of adapters beside all linear layers of a frozen model in ``dtype``; 0 trains all.
    """
    packed = packed_row(lengths, int(SHAPES[shape]["vocab_size"]))
    fake = FakeTensorMode(allow_non_fake_inputs=False)
    with _fake_group(0, world_size):
        with fake:
            model = random_policy(shape, attention, recompute)
            if rank:
                _cast(model, dtype)
                Lora(adapters(model, rank), torch.float32).attach(model.hf)
        # a mesh holds real numbers, and what is made of a fake tensor is fake
        backend = Fsdp2Backend(model, DistSpec(world_size=world_size), dtype, sharding)
        tensors: dict[str, Any] = {
            one.name: fake.from_tensor(getattr(packed, one.name))
            for one in fields(packed)
            if isinstance(getattr(packed, one.name), Tensor)
        }
        given: AbstractContextManager[object] = nullcontext()
        if attention == "varlen":
            ends = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
            boundaries = Boundaries(fake.from_tensor(ends), max(lengths))
            arguments = {"boundaries": boundaries}
            given = patch.object(packed_model, "attention_arguments", lambda *_: arguments)
        with fake, _even_loads(), given:
            return count_step(backend, replace(packed, columns={}, **tensors), OptimSpec())


def live(
    shape: str,
    place: DistSpec,
    lengths: Sequence[int],
    *,
    recompute: Recompute,
    dtype: torch.dtype,
) -> tuple[Count, int]:
    """The count of a real step in a process group that this process has joined, and the bytes of
    all tensors that live after an optimizer step."""
    import gc

    backend = Fsdp2Backend(random_policy(shape, "segments", recompute), place, dtype)
    packed = packed_row(lengths, int(SHAPES[shape]["vocab_size"]))
    count = count_step(backend, packed, OptimSpec())
    for optimizer in backend.optimizers:
        optimizer.step()
    gc.collect()
    storages = {}
    for one in gc.get_objects():
        if isinstance(one, Tensor) and not isinstance(one, DTensor):
            storage = one.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return count, sum(storages.values())
