"""One rank of a world: losses and gradients of layouts of that size, in a file.

Run as ``python -m tests.training.layout_rank RANK WORLD_SIZE PORT MODELS FOLDER NAME...``, with the
names of layouts and bugs.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from agentrl.algorithms import make_algorithm
from agentrl.engines.checksum import tensor_checksum
from agentrl.training import (
    Actor,
    ActorSpec,
    Critic,
    CriticSpec,
    DistSpec,
    OptimSpec,
    RewardLearner,
    RewardLearnerSpec,
    join,
    leave,
    merge_columns,
    sample_weights,
    shards,
)
from agentrl.training.data import packing
from agentrl.training.data.partition import Plan, partition
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.fsdp.weights import whole_tensor
from agentrl.training.parallel import tensor_parallel
from agentrl.training.parallel.process_group import FULL, Sharding
from agentrl.training.roles.learner import LearningRole
from agentrl.types import Batch, RoutingShape, Stats
from tests.kit.waiting import DEADLINE_S
from tests.training.harness import layout, make_batch, make_siblings, prefixes, with_experts

FROZEN = OptimSpec(lr=0.0, betas=(0.0, 0.0), clip_grad_norm=None)
"""AdamW whose first moment is the gradient itself, and which moves nothing."""
MOVING = OptimSpec(lr=1e-3, clip_grad_norm=0.1)
MUON = OptimSpec(name="muon", lr=1e-3, muon_lr=1e-3, clip_grad_norm=0.1)
"""Of a mixture of experts, so that stacks of matrices move by it."""
MICRO_BATCHES = (30, 1000)
LENGTHS = (13, 1, 21, 6, 17, 2, 5, 30)
"""A sample of one token, and rows that neither 2 nor 4 divides."""

ALL = ("grpo", "gspo", "ppo", "reward_model")

BATCHES: Mapping[str, Callable[[], Batch]] = {
    "plain": lambda: make_batch(LENGTHS, temperature=0.9),
    "siblings": lambda: make_siblings(16),
}


@dataclass(frozen=True)
class Layout:
    """Of ranks; and the model, the algorithms and the precision that are compared on it."""

    world_size: int
    tp: int = 1
    sp: int = 1
    sharding: Sharding = field(default=FULL)
    model: str = "qwen3"
    algorithms: tuple[str, ...] = ALL[:3]
    dtype: str = "float64"
    gradient_checkpointing: bool = False

    @property
    def is_trained(self) -> bool:
        """Whether some steps are taken, too."""
        return self.algorithms[0] == "grpo" and self.dtype == "float64"

    @property
    def routing(self) -> RoutingShape | None:
        """Of a model whose tokens go through given experts; siblings have some given."""
        return RoutingShape(2, 4, 2) if self.model in ("experts", "mixtral") else None

    @property
    def moving(self) -> OptimSpec:
        return MUON if self.model == "experts" else MOVING

    @property
    def cases(self) -> list[tuple[str, int]]:
        """Batches and sizes of micro-batches: each with each where several algorithms are compared,
        and otherwise each once."""
        if self.world_size > 1 and len(self.algorithms) == 1:
            return list(zip(BATCHES, MICRO_BATCHES, strict=True))
        return list(itertools.product(BATCHES, MICRO_BATCHES))

    @property
    def name(self) -> str:
        if self.world_size == 1:
            return ALONE
        own = self.sharding
        parts = [
            f"{self.model} on {self.world_size}",
            f"tp{self.tp}",
            f"sp{self.sp}",
            own.mode,
        ]
        parts += [own.gradient_sync] if own.gradient_sync != "micro_batch" else []
        parts += [f"ep{own.ep}"] if own.ep > 1 else []
        parts += [self.dtype] if self.dtype != "float64" else []
        return " ".join([*parts, *(["recomputed"] if self.gradient_checkpointing else [])])


ALONE = "alone"
"""The folder of one rank's checkpoint."""
ONCE = Sharding(gradient_sync="mini_batch")
LAYOUTS = (
    Layout(2),
    Layout(2, tp=2, algorithms=ALL),
    Layout(2, sp=2, algorithms=ALL),
    Layout(
        2, sharding=Sharding("grad_op", gradient_sync="mini_batch"), algorithms=("grpo",)
    ),
    Layout(2, sharding=Sharding("hybrid", 1), algorithms=("grpo",)),
    Layout(2, model="untied", algorithms=("grpo",)),
    Layout(
        2, tp=2, model="untied", algorithms=("grpo", "ppo"), gradient_checkpointing=True
    ),
    Layout(2, tp=2, model="qwen2", algorithms=("grpo",)),
    Layout(2, tp=2, model="llama", algorithms=("grpo",)),
    Layout(2, sp=2, model="sliding", algorithms=("grpo",), gradient_checkpointing=True),
    Layout(2, tp=2, dtype="float32", algorithms=("grpo",)),
    Layout(2, sp=2, dtype="float32", algorithms=("gspo",)),
    Layout(2, model="experts", algorithms=("grpo",)),
    Layout(2, model="experts", sharding=Sharding(ep=2), algorithms=("grpo", "ppo")),
    Layout(2, tp=2, model="experts", algorithms=("grpo",), gradient_checkpointing=True),
    Layout(
        2,
        model="mixtral",
        tp=2,
        sharding=Sharding("grad_op", gradient_sync="mini_batch", ep=2),
        algorithms=("grpo",),
        gradient_checkpointing=True,
    ),
    Layout(4),
    Layout(4, tp=2),
    Layout(4, sp=2),
    Layout(4, tp=2, sp=2),
    Layout(4, tp=4, model="untied", algorithms=("grpo",)),  # more ranks than key heads
    Layout(4, sp=4, algorithms=("gspo",)),
    Layout(4, sharding=Sharding("hybrid", 2), algorithms=("grpo",)),
    Layout(4, tp=2, sharding=Sharding("hybrid", 1), algorithms=("grpo",)),
    Layout(4, sp=2, sharding=Sharding("grad_op"), algorithms=("grpo",)),
    Layout(4, tp=2, sharding=ONCE, algorithms=("grpo",), model="untied"),
    Layout(4, model="experts", algorithms=("grpo",)),
    Layout(4, model="experts", sharding=Sharding(ep=2), algorithms=("grpo",)),
    Layout(4, model="experts", sharding=Sharding(ep=4), algorithms=("grpo",)),
    Layout(
        4, model="experts", sp=2, sharding=Sharding("hybrid", 1, ep=2), algorithms=("grpo",)
    ),
    Layout(4, model="experts", tp=2, sharding=Sharding(ep=2), algorithms=("grpo",)),
)


class Ranks:
    """The passes of a role as the driver runs them, over the ranks of a process group.

    Args:
        place: this rank's.
    """

    def __init__(self, place: DistSpec) -> None:
        self.place = place
        self._data = place.rank // (place.tp * place.sp)

    def plan(self, batch: Batch, micro_batch_tokens: int, *, pairs: bool = False) -> Plan:
        (plan,) = partition(
            batch.lengths,
            batch.group[batch.trajectory],
            seed=0,
            layout=layout(self.place.dp, micro_batch_tokens),
            prefixes=prefixes(batch),
            unit="group" if pairs else "sample",
        )
        return plan

    def answers(self, own: Any) -> list[Any]:
        """One answer a data coordinate."""
        found: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(found, own)
        return found[:: self.place.tp * self.place.sp]

    def joined(
        self, role: Any, batch: Batch, micro_batch_tokens: int, *methods: str
    ) -> Batch:
        for method in methods:
            parts = shards(batch, self.plan(batch, micro_batch_tokens))
            found = self.answers(getattr(role, method)(parts[self._data]))
            batch = batch.join(merge_columns(found, parts, batch.cu_seqlens))
        return batch

    def update(
        self, role: Any, batch: Batch, micro_batch_tokens: int, *, pairs: bool = False
    ) -> dict[str, float]:
        plan = self.plan(batch, micro_batch_tokens, pairs=pairs)
        weights = sample_weights(batch, plan, role.spec.algorithm.reduction)
        own = role.update(shards(batch, plan, weights)[self._data])
        return dict(reduce(lambda a, b: a + b, self.answers(Stats(own)), Stats()).means())


def gradients(role: LearningRole) -> dict[str, torch.Tensor]:
    """The whole gradient of the last step."""
    (optimizer,) = role.backend.optimizers
    return {
        name: whole_tensor(optimizer.state[one]["exp_avg"]).clone()
        for name, one in role.backend.state().items()
    }


def noisy(batch: Batch, *names: str) -> Batch:
    """Columns of a policy or critic that has moved since."""
    rng = np.random.default_rng(11)
    moved = {
        name: getattr(batch, name)
        + 0.2 * rng.normal(size=batch.num_tokens) * batch.loss_mask
        for name in names
    }
    return replace(batch, **moved)


def compared(
    models: Path, own: Layout, ranks: Ranks
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Loss, statistics and gradients of each algorithm, batch and size of micro-batches."""
    spec: dict[str, Any] = {
        "optim": FROZEN,
        "dtype": own.dtype,
        "sharding": own.sharding,
        "gradient_checkpointing": own.gradient_checkpointing,
    }
    path = str(models / own.model)
    for name in own.algorithms:
        settings = {"kl_coef": 0.1} if name == "gspo" else {}
        algorithm = make_algorithm(name, settings)
        if name == "reward_model":
            learner = RewardLearner(RewardLearnerSpec(path, algorithm, **spec), ranks.place)
            batch = make_batch(LENGTHS, rollouts=2)
            for micro in (64, 1000):
                stats = ranks.update(learner, batch, micro, pairs=True)
                yield f"{name} {micro}", {"stats": stats, "gradients": gradients(learner)}
            continue
        replays = own.routing is not None
        actor = Actor(
            ActorSpec(path, algorithm, replays_routing=replays, **spec), ranks.place
        )
        critic = None
        if name == "ppo":
            critic = Critic(CriticSpec(path, algorithm, head_seed=5, **spec), ranks.place)
        for kind, micro in own.cases:
            batch = BATCHES[kind]()
            if own.routing is not None and kind == "siblings":
                batch = with_experts(batch, own.routing)
            rng = np.random.default_rng(4)
            reference = (-4 + rng.normal(size=batch.num_tokens)) * batch.loss_mask
            batch = batch.join({"ref_logprobs": reference.astype(np.float32)})
            if critic is not None:
                batch = noisy(ranks.joined(critic, batch, micro, "values"), "values")
            batch = noisy(ranks.joined(actor, batch, micro, "logprobs"), "old_logprobs")
            batch = ranks.joined(actor, batch, micro, "advantages")
            for role in (actor, critic):
                if role is not None:
                    stats = ranks.update(role, batch, micro)
                    found = {"stats": stats, "gradients": gradients(role)}
                    yield f"{name} {role.name} {kind} {micro}", found


def trained(models: Path, own: Layout, ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Clipped steps, and what is saved, published, exported and refused afterwards."""
    algorithm = make_algorithm("sft")
    path = str(models / own.model)
    spec = ActorSpec(path, algorithm, own.moving, dtype=own.dtype, sharding=own.sharding)  # type: ignore[arg-type]
    actor = Actor(spec, ranks.place)
    batch = BATCHES["plain"]()
    stats = [ranks.update(actor, batch, 30) for _ in range(3)]
    target = folder / own.model / own.name.replace(" ", "-")
    actor.save(target)
    actor.export(target / "export")
    published = {name: tensor.clone() for name, tensor in actor.weights()}
    sums = {name: tensor_checksum(name, one) for name, one in published.items()}
    # one sample's loss is not finite: no rank takes the step
    broken = batch.loss_mask.copy()
    broken[(np.arange(broken.size) >= batch.cu_seqlens[-2]) & (broken > 0)] = np.inf
    refused = ranks.update(actor, replace(batch, loss_mask=broken), 30)
    resumed = Actor(spec, ranks.place)
    resumed.load(folder / own.model / ALONE)
    return {
        "stats": stats,
        "weights": published,
        "sums agree": sums == actor.checksum(),
        "refused": refused,
        "next": ranks.update(actor, batch, 30),
        "folder": target,
        "resumed": ranks.update(resumed, batch, 30),
    }


def labels_shifted_after_the_cut(cut_row: Any) -> Any:
    """The last token of a slice then foretells the slice's own first one."""

    def wrong(arrays: Any, before: Any, cut: packing.Cut) -> Any:
        found = cut_row(arrays, before, cut)
        own = found.arrays
        following = np.roll(own["token_ids"], -1)
        own["targets"] = following[own["logit_rows"][own["logit_of"]]]
        return found

    return wrong


def remainder_dropped(cut_row: Any) -> Any:
    """The row is cut to a multiple of the ranks; what is asked of its rest is asked of its end."""

    def wrong(arrays: Any, before: Any, cut: packing.Cut) -> Any:
        size = arrays["token_ids"].size
        kept = size - size % cut.parts
        own = {
            **arrays,
            "token_ids": np.concatenate(
                [arrays["token_ids"][:kept], np.zeros(size - kept, int)]
            ),
        }
        return cut_row(own, before, cut)

    return wrong


def one_token_spans_joined(padded: Any) -> Any:
    """A sample of one token then sees the one before it."""

    def wrong(spans: tuple[Span, ...], parts: int) -> tuple[Span, ...]:
        joined: list[Span] = []
        for span in spans:
            if joined and span.size == 1 and span.parent == ROOT:
                joined[-1] = joined[-1]._replace(size=joined[-1].size + 1)
            elif joined and joined[-1].size == 1 and span.parent == ROOT:
                joined[-1] = span._replace(size=span.size + 1)
            else:
                joined.append(span)
        found: tuple[Span, ...] = padded(tuple(joined), parts)
        return found

    return wrong


def no_sum(_whole: Any) -> Any:
    """Each rank keeps the gradient of its own heads' norms."""
    return lambda parameter, _group: parameter


_CUT = Layout(2, sp=2, algorithms=("grpo",))
# which reads every sample's last token
_ENDS = Layout(2, sp=2, algorithms=("reward_model",))
SQUARE = Layout(4, tp=2, sp=2)
"""The layout of invariant 5: both kinds of parallelism at once, on the fewest ranks."""
BUGS: Mapping[str, tuple[Any, str, Any, Layout]] = {
    "labels shifted after the cut": (
        packing,
        "slice_row",
        labels_shifted_after_the_cut,
        _CUT,
    ),
    "remainder dropped": (packing, "slice_row", remainder_dropped, _ENDS),
    "one-token spans joined": (packing, "padded_spans", one_token_spans_joined, _ENDS),
    "no sum of head norms": (
        tensor_parallel,
        "whole_gradient",
        no_sum,
        Layout(2, tp=2, algorithms=("grpo",)),
    ),
}


@contextmanager
def bug(name: str) -> Iterator[Layout]:
    module, function, make, own = BUGS[name]
    right = getattr(module, function)
    setattr(module, function, make(right))
    try:
        yield own
    finally:
        setattr(module, function, right)


def run(
    place: DistSpec, models: Path, folder: Path, names: Sequence[str]
) -> dict[str, Any]:
    """By layout, what is compared; and what bugs make of it."""
    join(place)
    found: dict[str, Any] = {"cases": {}, "trained": {}, "bugs": {}}
    for own in LAYOUTS:
        if own.world_size != place.world_size or own.name not in names:
            continue
        sys.stderr.write(f"{own.name}\n")
        ranks = Ranks(replace(place, tp=own.tp, sp=own.sp))
        found["cases"][own.name] = dict(compared(models, own, ranks))
        if own.is_trained:
            found["trained"][own.name] = trained(models, own, ranks, folder)
    for name, (*_, layout_of) in BUGS.items():
        if layout_of.world_size == place.world_size and name in names:
            sys.stderr.write(f"{name}\n")
            with bug(name) as own:
                ranks = Ranks(replace(place, tp=own.tp, sp=own.sp))
                found["bugs"][name] = dict(compared(models, own, ranks))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = DistSpec(
        rank=int(sys.argv[1]),
        world_size=int(sys.argv[2]),
        port=int(sys.argv[3]),
        timeout_s=DEADLINE_S,
    )
    out = Path(sys.argv[5])
    result = run(here, Path(sys.argv[4]), out, sys.argv[6:])
    if here.rank == 0:
        torch.save(result, out / f"world{here.world_size}.pt")
    leave()
