"""Actor: the policy being trained on one rank, and the numbers of each token that an update leaves.

Those numbers stay on the device until the update's end, so that no micro-batch waits for them. None
of them is part of the loss's graph.

Axes: T packed tokens of a shard, N trained tokens of a micro-batch, S samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms import (
    AlgorithmSpec,
    Correction,
    OldLogprobs,
    PolicyInputs,
    TokenLoss,
)
from agentrl.algorithms.functions.losses import given
from agentrl.errors import ConfigError
from agentrl.store.store_spec import Detail
from agentrl.training.backends.backend import RoleModel, StatSum
from agentrl.training.data.packing import Packed
from agentrl.training.device import DeviceMeter
from agentrl.training.names import DType, torch_dtype
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.roles.advantages import shard_advantages
from agentrl.training.roles.learner import LearnerSpec, LearningRole, check_tokens
from agentrl.training.roles.policy import PolicyRole
from agentrl.types import BatchShard, Collect, Dispatch, Stat, UpdateStats, register
from agentrl.types.arrays import I64, Floats


class TokenColumns:
    """Collects the columns of one update over its micro-batches.

    Args:
        detail: ``basic`` collects none, ``full`` the entropy too.
        dtype: of the columns.
    """

    def __init__(
        self, detail: Detail, dtype: type[np.float32] | type[np.float64] = np.float32
    ) -> None:
        self._dtype = dtype
        self._detail = detail
        self._parts: dict[str, list[tuple[I64, Tensor]]] = {}

    @torch.no_grad()
    def add(
        self,
        source: I64,
        inputs: PolicyInputs,
        outcome: TokenLoss,
        correction: Correction | None,
        old_logprobs: OldLogprobs,
    ) -> None:
        """Take a micro-batch.

        Args:
            source: ``[N]`` positions of its trained tokens in the shard's columns.
            inputs, outcome: what the loss was given and returned.
            correction: factors c_t; None is 1.
            old_logprobs: where π_old comes from. Unless a pass of its own computed it, the update's
                logprobs are kept.

        Raises:
            ValueError: a column of the loss has another shape.
        """
        if self._detail == "basic":
            return
        loss = outcome.loss if correction is None else outcome.loss * correction.factor
        for term in outcome.terms.values():
            loss = loss + term.coef * term.values
        columns = {**outcome.columns, "token_loss": loss}
        if old_logprobs in ("current", "rollout"):
            columns["logprobs"] = inputs.logprobs
        if correction is not None:
            columns["correction"] = correction.factor
        if self._detail == "full":
            columns["entropy"] = inputs.entropy
        for name, values in columns.items():
            if values.shape != inputs.logprobs.shape:
                raise ValueError(
                    f"column {name!r} of the policy's loss must have an entry for each of the "
                    f"{inputs.logprobs.numel()} trained tokens, got shape {tuple(values.shape)}"
                )
            self._parts.setdefault(name, []).append((source, values.detach()))

    def result(self, num_tokens: int) -> dict[str, Floats]:
        """``[num_tokens]`` columns by name, 0 for tokens that were not trained."""
        columns = {}
        for name, parts in self._parts.items():
            column = np.zeros(num_tokens, dtype=self._dtype)
            sources = np.concatenate([source for source, _ in parts])
            # bfloat16, which numpy has not, is not among them
            column[sources] = torch.cat([values for _, values in parts]).cpu().numpy()
            columns[name] = column
        return columns


@dataclass(frozen=True, slots=True)
class ActorSpec(LearnerSpec):
    """What an actor is built from.

    Args:
        detail: which numbers of each token an update returns (docs/annotations.md).
        replays_routing: whether tokens go through the experts that the sampler chose, with gates of
            the actor's own (arXiv:2510.11370).
    """

    detail: Detail = "basic"
    replays_routing: bool = False

    def build(self, place: DistSpec) -> Actor:
        """The role on one rank."""
        return Actor(self, place)


class Actor(PolicyRole, LearningRole):
    """One rank of the policy.

    Raises:
        ConfigError: as ``Role``, or the algorithm has no policy's loss, or the model no experts to
            replay.
    """

    name = "actor"
    spec: ActorSpec

    def __init__(self, spec: ActorSpec, place: DistSpec) -> None:
        if spec.algorithm.policy_loss is None:
            raise ConfigError(
                f"algorithm {spec.algorithm.name!r} trains no policy, so no actor can be built for "
                "it"
            )
        self._policy_loss = spec.algorithm.policy_loss
        super().__init__(spec, place)
        self.replays_routing = spec.replays_routing
        if self.replays_routing and self.backend.info.routing is None:
            raise ConfigError(
                f"TrainConfig.router_replay='rollout' needs a mixture of experts that "
                f"backend {self.backend.name!r} routes by itself, and {spec.model_path!r} is none; "
                "set it to off, or choose another model",
                fields=("TrainConfig.router_replay", "ModelConfig.path"),
            )
        self._model_ranks = place.tp * place.pp
        parts = [f"{name}_loss" for name in spec.algorithm.terms]
        names = ["loss", *(["pg_loss", *parts] if parts else [])]
        self._loss_names = [f"policy/{name}" for name in names]

    def asked(self) -> RoleModel:
        """See ``Role.asked``."""
        return replace(super().asked(), entropy_gradient=self.spec.algorithm.needs.entropy)

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def logprobs(self, shard: BatchShard) -> dict[str, Floats]:
        """``{"old_logprobs": [T]}`` of the weights as they are; zeros off the mask."""
        return {"old_logprobs": self.trained_logprobs(shard)}

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def reference_logprobs(self, shard: BatchShard) -> dict[str, Floats]:
        """``{"ref_logprobs": [T]}`` of the model without its adapter; zeros off the mask."""
        # As a reference of its own, it routes itself.
        own = replace(shard, batch=replace(shard.batch, routed_experts=None))
        with self.backend.without_adapter():
            return {"ref_logprobs": self.trained_logprobs(own)}

    @register(Dispatch.DATA, collect=Collect.COLUMNS, needs=())
    def advantages(self, shard: BatchShard) -> dict[str, Floats]:
        """``{"advantages": [T]}``: credit brought to tokens; zeros off the mask. With a critic
        ``returns`` too."""
        found = shard_advantages(
            shard, self.spec.algorithm, self.device, self.backend.sum_over_ranks
        )
        return {name: column.astype(self.column_dtype) for name, column in found.items()}

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> UpdateStats:
        """One optimizer step on a mini-batch: L = Σ_t w_s(t) · (c_t · ℓ_t + Σ_k β_k · k_t) over all
        ranks' trained tokens, and the auxiliary losses.

        Returns:
            This rank's statistics, to be merged over ranks, and the columns of ``spec.detail``. A
            mini-batch without trained tokens takes no step and counts in ``optim/skipped``, one
            whose gradient is not finite in ``optim/not_finite``.

        Raises:
            ValueError: the shard has no sample weights, or lacks a column that the algorithm needs.
            TrainingError: weights are gathered; no step was taken.
        """
        # Each of the ranks that share a model computes a part of it; all others count their own
        # tokens.
        info = self.backend.info
        # A frozen weight's own gradient, a third of the products, is not computed.
        products = 6.0 if self.spec.lora is None else 4.0
        flops = products * (info.num_active or info.num_parameters) / self._model_ranks
        meter = DeviceMeter(self.device, flops, self.spec.dtype)
        columns = TokenColumns(self.spec.detail, self.column_dtype)

        def loss(packed: Packed, answer: tuple[Tensor, Tensor], stats: StatSum) -> Tensor:
            meter.add(packed.token_ids.numel())
            return self._loss(packed, answer, shard, stats, columns)

        sums = [*self._loss_names, *(f"policy/{name}" for name in shard.auxiliary)]
        found = self.learn(shard, shard.wanted(), loss, sums=sums)
        found += {name: Stat.of([value]) for name, value in meter.metrics().items()}
        if self.replays_routing:
            batch = shard.batch
            found += {"moe/unrecorded_frac": Stat(batch.num_unrecorded, batch.num_tokens)}
        return UpdateStats(found, columns.result(shard.batch.num_tokens))

    def weights(self, dtype: DType | None = None) -> Iterator[tuple[str, Tensor]]:
        """``(Hugging Face name, whole tensor)``, one at a time, by every rank to its end; see
        ``TrainBackend.weights``.

        Args:
            dtype: as served; None is the spec's own.
        """
        with self.backend.holding("params"):
            yield from self.backend.weights(
                self.dtype if dtype is None else torch_dtype(dtype)
            )

    def _loss(
        self,
        packed: Packed,
        answer: tuple[Tensor, Tensor],
        shard: BatchShard,
        stats: StatSum,
        columns: TokenColumns,
    ) -> Tensor:
        """The loss of a micro-batch."""
        logprobs, entropy = answer
        if not packed.source.size:
            # A gradient of zeros, and not none: this rank runs the same collectives as the others.
            return logprobs.sum() * 0.0
        inputs = policy_inputs(packed, shard, self.spec.algorithm, logprobs, entropy)
        weight = packed.columns["weight"]
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        if shard.auxiliary:
            loss = self._auxiliary_loss(inputs, packed, stats)
            inputs, weight = rows_of(inputs, packed.trained), weight[packed.trained]
        if packed.trained_source.size:
            loss = loss + self._trained_loss(inputs, packed, weight, stats, columns)
        return loss

    def _trained_loss(
        self,
        inputs: PolicyInputs,
        packed: Packed,
        weight: Tensor,
        stats: StatSum,
        columns: TokenColumns,
    ) -> Tensor:
        """Σ w · (c · ℓ + Σ_k β_k · k) over the trained tokens of a micro-batch, float64.

        Raises:
            TrainingError: the loss or the correction is not one number a token.
            ValueError: the loss returns other terms than the algorithm declares.
        """
        algorithm = self.spec.algorithm
        outcome = self._policy_loss(inputs)
        check_tokens(outcome.loss, inputs.logprobs, algorithm.told("policy_loss"))
        if set(outcome.terms) != set(algorithm.terms):
            raise ValueError(
                f"the policy_loss of algorithm {algorithm.name!r} must return the terms that its "
                f"AlgorithmSpec declares, {sorted(algorithm.terms)}, got {sorted(outcome.terms)}"
            )
        corrected = weight
        correction = (
            algorithm.correction(inputs) if algorithm.correction is not None else None
        )
        if correction is not None:
            check_tokens(correction.factor, inputs.logprobs, algorithm.told("correction"))
            corrected = weight * correction.factor.detach()
            stats.add_all(correction.stats)
        loss = surrogate = (outcome.loss * corrected).sum()
        for name, term in outcome.terms.items():
            total = (term.values * weight).sum()
            loss = loss + term.coef * total
            stats.add(f"policy/{name}_loss", total.detach(), 0)
        if algorithm.terms:
            stats.add("policy/pg_loss", surrogate.detach(), 0)
        stats.add("policy/loss", loss.detach(), 0)
        stats.add_all(outcome.stats)
        stats.add_values("policy/entropy", inputs.entropy)
        old_is_sampled = algorithm.old_logprobs == "rollout"
        fresh, stale = packed.fresh_rows, packed.stale_rows
        stats.add_mismatch(inputs, fresh, stale, old_is_sampled=old_is_sampled)
        columns.add(
            packed.trained_source, inputs, outcome, correction, algorithm.old_logprobs
        )
        return loss

    def _auxiliary_loss(
        self, inputs: PolicyInputs, packed: Packed, stats: StatSum
    ) -> Tensor:
        """Σ coef · mean ℓ over the tokens that auxiliary losses chose, float64."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for one in self.spec.algorithm.auxiliary:
            chosen = packed.columns.get(f"{one.name} tokens")
            if chosen is None or not chosen.numel():
                continue
            outcome = one.loss(rows_of(inputs, chosen))
            loss = (outcome.loss * packed.columns[f"{one.name} weights"]).sum()
            total = total + one.coef * loss
            stats.add(f"policy/{one.name}", loss.detach(), 0)
            stats.add_all(outcome.stats)
        return total


def policy_inputs(
    packed: Packed,
    shard: BatchShard,
    algorithm: AlgorithmSpec,
    logprobs: Tensor,
    entropy: Tensor,
) -> PolicyInputs:
    """What a loss is given of the ``[N]`` wanted tokens of a micro-batch.

    Raises:
        ValueError: the batch lacks π_old, which the algorithm takes from a pass of the trainer.
    """
    columns = packed.columns
    rollout_logprobs = columns["rollout_logprobs"]
    if algorithm.old_logprobs == "rollout":
        old = rollout_logprobs
    elif algorithm.old_logprobs == "current":
        old = logprobs.detach()
    else:
        old = given(columns.get("old_logprobs"), "old_logprobs")
    return PolicyInputs(
        logprobs=logprobs,
        old_logprobs=old,
        rollout_logprobs=rollout_logprobs,
        sampled=packed.sampled,
        entropy=entropy,
        sample_row=packed.sample,
        turn_row=columns["turn_row"],
        trajectory_row=columns["trajectory_row"],
        staleness=columns["staleness"],
        ref_logprobs=columns.get("ref_logprobs"),
        advantages=columns.get("advantages"),
        state=shard.algorithm_state,
        columns={name: columns[name] for name in shard.batch.own},
    )


def rows_of(inputs: PolicyInputs, rows: Tensor) -> PolicyInputs:
    """The given tokens of ``inputs`` alone."""
    columns = {
        one.name: getattr(inputs, one.name)[rows]
        for one in fields(inputs)
        if isinstance(getattr(inputs, one.name), Tensor)
    }
    own = {name: column[rows] for name, column in inputs.columns.items()}
    return replace(inputs, **columns, columns=own)
