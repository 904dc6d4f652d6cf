"""Backend check: a train backend against the contract of ``agentrl.training.backends.backend``.

It is held beside ``plain``: an actor on each trains the same batch, and must say and become the
same.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms import make_algorithm
from agentrl.engines.checksum import tensor_checksum
from agentrl.errors import ConfigError
from agentrl.training.backends.backend import TrainBackend
from agentrl.training.backends.find import find_backend
from agentrl.training.data.partition import Layout, partition, sample_weights, shards
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.parallel.process_group import DistSpec, join
from agentrl.training.roles.actor import Actor, ActorSpec
from agentrl.training.roles.policy import Reference, ReferenceSpec
from agentrl.types import Batch, BatchShard, SegmentKind
from agentrl.types.user_code.contract import Contract, hold

_LENGTHS = (9, 7, 12, 8)
_PROMPT = 3
_CLOSE = 1e-4
"""Of two numbers, absolute and as a share: float32 in another order of sums."""
_OPTIM = OptimSpec(lr=1e3, eps=1e3, clip_grad_norm=None)
"""Moves each weight by its gradient in the first step: the second moment is nothing beside eps."""
_SEEN = 1e-2
"""The gradients that are held apart: those above this share of the model's largest one."""


def check_backend(
    backend: str, model_path: str | Path, *, place: DistSpec | None = None
) -> None:
    """Holds a train backend to its contract, by a policy on one rank in this process.

    Args:
        backend: as ``train.backend`` names it.
        model_path: a small causal model's folder, in float32.
        place: the rank; None is a world of one on the CPU, which is joined.

    Raises:
        ConfigError: every rule that it breaks, with what was found, or there is no such backend.
    """
    find_backend(backend)
    where = place or DistSpec()
    join(where)
    checked = _CheckedBackend(backend, str(model_path), where)
    checked.check()
    checked.conclude(
        f"TrainConfig.backend={backend!r}", "backends' contract (docs/training.md)"
    )


class _CheckedBackend(Contract):
    """A backend under test."""

    def __init__(self, backend: str, model_path: str, place: DistSpec) -> None:
        super().__init__()
        self._backend = backend
        self._model_path = model_path
        self._place = place
        self._plain = self._actor("plain")
        self._shard = _shard(self._plain)

    def _actor(self, backend: str) -> Actor:
        # grpo's loss of a ratio of 1 has a gradient, and "rollout" needs no other pass
        algorithm = make_algorithm("grpo", {"old_logprobs": "rollout"})
        return Actor(
            ActorSpec(self._model_path, algorithm, _OPTIM, backend=backend), self._place
        )

    def check(self) -> None:
        """All rules, on one actor."""
        own: Actor | None = None
        with self.rule("build() loads the model of a folder"):
            own = self._actor(self._backend)
        if own is None:
            return
        self._information(own.backend)
        self._weights(own, "at first")
        with self.rule(
            "infer() gives the logprobs of the wanted tokens, also of a frozen model"
        ):
            frozen = Reference(
                ReferenceSpec(self._model_path, backend=self._backend), self._place
            )
            wanted = self._plain.logprobs(self._shard)["old_logprobs"]
            _hold_close(own.logprobs(self._shard), {"old_logprobs": wanted})
            _hold_close(frozen.logprobs(self._shard), {"ref_logprobs": wanted})
        self._moves(own)
        with self.rule("run() and step() take optimizer step 2"):
            _hold_close(self._update(own), self._update(self._plain))
        self._weights(own, "after two steps")
        self._keeps_away(own)
        self._skips(own)
        self._sums(own)
        with tempfile.TemporaryDirectory() as folder:
            self._saves(own, Path(folder))

    def _sums(self, own: Actor) -> None:
        with self.rule("run() adds to the gradients of the runs before"):
            rows, norms = own.packed(self._shard), []
            for runs in (1, 2):
                for _ in range(runs):
                    own.backend.run(rows, lambda packed, answer, stats: answer[0].sum())
                norms.append(own.backend.step(0.0, None).grad_norm)
            found = {"grad_norm of two runs": norms[1]}
            _hold_close(found, {"grad_norm of two runs": 2 * norms[0]})

    def _moves(self, own: Actor) -> None:
        """Holds every gradient by where an optimizer step leads."""
        before = _weights_of(self._plain)
        with self.rule("run() and step() take optimizer step 1"):
            _hold_close(self._update(own), self._update(self._plain))
        with self.rule("run() gives every tensor the gradient of plain"):
            found, wanted = _weights_of(own), _weights_of(self._plain)
            sizes = {
                name: float((wanted[name] - before[name]).abs().max()) for name in wanted
            }
            floor = _SEEN * max(sizes.values())
            for name, size in sizes.items():
                off = float((found[name] - wanted[name]).abs().max()) / max(size, floor)
                hold(off < _SEEN, f"that of {name} is off by {off:.2g} of its largest")

    def _information(self, backend: TrainBackend) -> None:
        with self.rule("info is that of the model"):
            info, wanted = backend.info, self._plain.backend.info
            found = (info.num_parameters, info.vocab_size)
            expected = (wanted.num_parameters, wanted.vocab_size)
            hold(
                found == expected, f"parameters and vocabulary are {found}, not {expected}"
            )
            hold(info.length_scale > 0, f"length_scale is {info.length_scale}")

    def _weights(self, own: Actor, when: str) -> None:
        with self.rule(f"weights() are whole tensors by the folder's names, {when}"):
            found, wanted = _weights_of(own), _weights_of(self._plain)
            odd = sorted(found.keys() ^ wanted.keys())
            hold(not odd, f"{odd[:1]} is on one side alone")
            for name, tensor in wanted.items():
                hold(
                    found[name].shape == tensor.shape,
                    f"{name} has shape {found[name].shape}",
                )
                same = torch.allclose(found[name], tensor, rtol=_CLOSE, atol=_CLOSE)
                hold(same, f"{name} differs from that of plain")
        with self.rule(f"checksums() are those of weights(), {when}"):
            sums = own.checksum("float32")
            for name, tensor in own.weights("float32"):
                own_sum = tensor_checksum(name, tensor)
                hold(sums.get(name) == own_sum, f"{name} has {sums.get(name)}")

    def _update(self, actor: Actor) -> dict[str, Any]:
        return dict(actor.update(self._shard).means())

    def _skips(self, own: Actor) -> None:
        with self.rule("step() only forgets a gradient that is not finite"):
            before = own.checksum("float32")
            rows = own.packed(self._shard)
            own.backend.run(
                rows, lambda packed, answer, stats: answer[0].sum() * float("nan")
            )
            result = own.backend.step(1.0, None)
            hold(bool(result.not_finite), f"not_finite is {result.not_finite}")
            hold(own.checksum("float32") == before, "weights moved")
            again = own.backend
            again.run(rows, lambda packed, answer, stats: answer[0].sum() * 0.0)
            norm = again.step(0.0, None).grad_norm
            hold(norm == 0.0, f"the next gradient has norm {norm}, not 0")

    def _keeps_away(self, own: Actor) -> None:
        with self.rule("what keep_away() took comes back for what needs it, unchanged"):
            sums = own.checksum("float32")
            try:
                own.backend.keep_away(("params", "optimizer"))
            except ConfigError:
                return  # it says that it cannot
            hold(own.checksum("float32") == sums, "the weights are others")
            _hold_close(self._update(own), self._update(self._plain))
            own.backend.keep_away(())
            self._weights(own, "after a step of what was kept away")

    def _saves(self, own: Actor, folder: Path) -> None:
        with self.rule("load() goes on from what save() wrote, exactly"):
            own.begin_save(folder / "saved")
            steps, saved = own.steps, own.checksum()
            self._update(own)
            result = own.save_result(wait=True)
            hold(
                result is not None and result.error is None,
                f"begin_save() came to {result}",
            )
            other = self._actor(self._backend)
            other.load(folder / "saved")
            hold(other.steps == steps, f"{other.steps} steps were taken, not {steps}")
            hold(other.checksum() == saved, "the weights are not those of begin_save()")
            self._update(other)
            hold(
                other.checksum() == own.checksum(), "the next step moves weights elsewhere"
            )
        with self.rule("export() writes a Hugging Face folder"):
            own.export(folder / "exported")
            spec = ActorSpec(
                str(folder / "exported"), make_algorithm("sft"), backend="plain"
            )
            found = Actor(spec, self._place).checksum("float32")
            hold(found == own.checksum("float32"), "plain loads other weights of it")


def _weights_of(actor: Actor) -> dict[str, Tensor]:
    return {name: tensor.cpu().clone() for name, tensor in actor.weights("float32")}


def _hold_close(found: Any, wanted: Any) -> None:
    """Two mappings of equal numbers, or of equal arrays of them."""
    for name, value in wanted.items():
        hold(name in found, f"there is no {name!r}")
        same = np.allclose(found[name], value, rtol=_CLOSE, atol=_CLOSE)
        hold(same, f"{name} is {found[name]!r}, not {value!r}")


def _shard(actor: Actor) -> BatchShard:
    """Two groups of two samples in two micro-batches, with advantages."""
    total, num = sum(_LENGTHS), len(_LENGTHS)
    rows, zeros = np.arange(num, dtype=np.int32), np.zeros(num, np.float32)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, min(64, actor.facts().vocab_size), total).astype(np.int32)
    kind = np.full(total, SegmentKind.POLICY, dtype=np.int8)
    ends = np.cumsum([0, *_LENGTHS]).astype(np.int32)
    for start in ends[:-1]:
        kind[start : start + _PROMPT] = SegmentKind.PROMPT
    mask = (kind == SegmentKind.POLICY).astype(np.float32)
    batch = Batch(
        token_ids=ids,
        kind=kind,
        loss_mask=mask,
        rollout_logprobs=-4 * mask,
        policy_versions=np.where(mask > 0, 0, -1).astype(np.int32),
        turn_index=np.repeat(rows, _LENGTHS).astype(np.int32),
        cu_seqlens=ends,
        trajectory=rows,
        temperature=np.ones(num, np.float32),
        turn_trajectory=rows,
        state_key=np.zeros(num, np.uint64),
        group=rows // 2,
        group_index=(rows // 2).astype(np.int64),
        rollout_index=rows % 2,
        weight=np.ones(num),
        turn_reward=zeros,
        turn_credit=zeros,
        reward=zeros,
        credit=zeros,
        truncated=zeros > 0,
        interrupted=zeros > 0,
        advantages=np.repeat([1.0, -1.0, 0.5, -0.5], _LENGTHS).astype(np.float32) * mask,
    )
    layout = Layout(1, 20, actor.facts().length_scale)
    (plan,) = partition(batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout)
    (shard,) = shards(
        batch, plan, sample_weights(batch, plan, actor.spec.algorithm.reduction)
    )
    return shard
