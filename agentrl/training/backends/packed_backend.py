"""Packed backend: a packed model of this process in torch, the base of ``fsdp2`` and ``plain``."""

from __future__ import annotations

import logging
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agentrl.engines.torch.model.families import (
    MIXTURES,
    computed,
    max_positions,
    query_width,
)
from agentrl.engines.weights import read_config
from agentrl.errors import ConfigError
from agentrl.training.backends.backend import (
    Loss,
    MicroBatches,
    ModelInfo,
    OptimizerStep,
    RoleModel,
    StatSum,
    TrainBackend,
)
from agentrl.training.backends.residency import OFFLOADED, Residency
from agentrl.training.data.packing import Packed
from agentrl.training.fsdp.checkpoint import (
    CheckpointWriter,
    load_checkpoint,
    training_state,
)
from agentrl.training.fsdp.export import export_model
from agentrl.training.fsdp.gradients import clip_gradients
from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.fsdp.weights import full_weights, weight_parts
from agentrl.training.models.expert_loads import ExpertLoads
from agentrl.training.models.lora_targets import open_lora
from agentrl.training.models.mixture import Balance, Routing
from agentrl.training.models.packed_model import ModelSpec, PackedModel, check_layout
from agentrl.training.models.policy_model import open_policy
from agentrl.training.models.score_model import ScoreModel, ValueModel, open_scores
from agentrl.training.models.trunk import wrap_blocks
from agentrl.training.names import PREFIX, torch_dtype
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import build_optimizers
from agentrl.training.parallel.layout_rules import check_backend_ranks
from agentrl.training.parallel.process_group import FULL, DistSpec, Sharding
from agentrl.training.parallel.shards import WeightPart, local
from agentrl.training.save_result import SaveResult
from agentrl.training.vision.vision_tower import check_vision
from agentrl.types import Part, RoutingShape

logger = logging.getLogger(__name__)


class PackedBackend(TrainBackend):
    """One rank of a packed model.

    Args:
        model: as loaded, equal on every rank.
        place: this rank's.
        dtype: of the forward pass; gradients, optimizer and what it updates are at least float32.
        sharding: over ranks, where the backend shards.

    Attributes:
        router_aux_loss: the weight of the loss that evens out the loads of experts.
        optimizers: none before ``optimize_by``.
        residency: what of it lies on the device.
    """

    has_adapters = True
    model: PackedModel
    router_aux_loss = 0.0

    def __init__(
        self,
        model: PackedModel,
        place: DistSpec,
        dtype: torch.dtype,
        sharding: Sharding = FULL,
    ) -> None:
        super().__init__(info_of(model), place)
        self.model = model
        self.positions_of = model.positions_of
        self.dtype = dtype
        self.sharding = sharding
        self.optimizers: list[torch.optim.Optimizer] = []
        self._writer = CheckpointWriter()
        self._prepare(place)
        self.residency = Residency(
            {"params": self._parameters, "optimizer": self._moments},
            is_frozen=not any(one.requires_grad for one in model.parameters()),
        )

    @classmethod
    def build(cls, spec: ModelSpec, asked: RoleModel, place: DistSpec) -> Self:
        """See ``TrainBackend.build``."""
        if spec.deterministic:
            _use_deterministic_kernels()
        check_backend_ranks(cls.name, place.world_size, place.pp)
        named, ep = f"{spec.setting}={spec.model_path!r}", spec.sharding.ep
        layout = {"PlacementConfig.tp_size": place.tp, "PlacementConfig.sp_size": place.sp}
        settings = {"TrainConfig.ep_size": ep, "TrainConfig.compile": spec.compile}
        check_vision(Path(spec.model_path), layout | settings, named)
        check_layout(spec.model_path, named, place.tp, place.sp, ep)
        model = _open(spec, asked, place)
        if spec.head_dtype is not None:
            if not isinstance(model.head, torch.nn.Linear):
                raise ConfigError(
                    f"ModelConfig.head_dtype={spec.head_dtype!r} needs a linear output layer, got "
                    f"a {type(model.head).__name__}; leave it out, or choose another family"
                )
            model.head_dtype = torch_dtype(spec.head_dtype)
        if spec.router_aux_loss and model.routing is None:
            raise ConfigError(
                f"TrainConfig.router_aux_loss={spec.router_aux_loss:g} evens out the experts of "
                f"{', '.join(MIXTURES)}, got {model.config.get_text_config().model_type!r} as the "
                f"family of {named}; leave it out"
            )
        if spec.compile:
            # chosen rows would make a graph for each of their numbers
            model.skips_mlp_rows = False
            model.compile_scores()
        if spec.gradient_checkpointing or spec.compile:
            recompute = spec.gradient_checkpointing
            blocks = model.blocks() + model.tower_blocks()
            wrap_blocks(blocks, recompute=recompute, compiles=spec.compile)
        if not asked.trains:
            model.requires_grad_(False)
        made = cls(model, place, torch_dtype(spec.dtype), spec.sharding)
        made.router_aux_loss = spec.router_aux_loss
        made.residency.always = OFFLOADED[spec.offload]
        # Nothing is kept away for an engine yet; what is always offloaded leaves the device.
        made.keep_away(())
        return made

    @abstractmethod
    def _prepare(self, place: DistSpec) -> None:
        """Brings ``model`` into the form in which it runs and is kept, with its adapters."""

    @abstractmethod
    def _micro_batch(self, *, is_last: bool) -> AbstractContextManager[None]:
        """A forward and its backward pass run within; the last one's gradient is the step's."""

    @abstractmethod
    def _inference(self) -> AbstractContextManager[None]:
        """Forward passes that no backward follows run within."""

    def run(self, micro_batches: MicroBatches, loss: Loss) -> StatSum:
        """See ``TrainBackend.run``."""
        stats, loads = StatSum(), self._loads()
        balance = self._balance(micro_batches)
        for number, packed in enumerate(micro_batches, start=1):
            with self._micro_batch(is_last=number == len(micro_batches)):
                if balance is not None:
                    self._routing.balance = Balance(balance, packed.copies)
                torch.autograd.backward(loss(packed, self.model(packed), stats))
            if loads is not None:
                loads.add(packed.copies)
        if loads is not None:
            self._routing.balance = None
            loads.sum_over_ranks()
            for name, value in loads.metrics().items() if self.is_first else ():
                stats.add(name, torch.tensor(value, dtype=torch.float64), 1)
        return stats

    @property
    def _routing(self) -> Routing:
        routing = self.model.routing
        assert routing is not None, "asked of a mixture of experts alone"
        return routing

    def _loads(self) -> ExpertLoads | None:
        """Of no passes yet; None for a model without experts."""
        routing = self.model.routing
        return None if routing is None else ExpertLoads(routing, self.model_device)

    def _balance(self, micro_batches: MicroBatches) -> Tensor | None:
        """``[E]`` what a token's probabilities add to the loss; None adds nothing.

        It needs the loads of the whole mini-batch before the first backward pass, for which all
        rows run once more.
        """
        loads = self._loads()
        if loads is None or not self.router_aux_loss:
            return None
        add = loads.add
        self.infer(micro_batches, lambda packed, _: add(packed.copies))
        loads.sum_over_ranks()
        return loads.balance(self.router_aux_loss)

    def infer(
        self, micro_batches: Iterable[Packed], take: Callable[[Packed, Any], None]
    ) -> None:
        """See ``TrainBackend.infer``."""
        with self._inference():
            for packed in micro_batches:
                take(packed, self.model(packed))

    def optimize_by(self, spec: OptimSpec) -> None:
        """See ``TrainBackend.optimize_by``."""
        self.optimizers = build_optimizers(spec, self.model, self.model.head)

    def step(self, factor: float, clip_grad_norm: float | None) -> OptimizerStep:
        """See ``TrainBackend.step``.

        Raises:
            TrainingError: weights are gathered; no step was taken.
        """
        state = {name: one for name, one in self.state().items() if one.requires_grad}
        norm = clip_gradients(state.values(), clip_grad_norm)
        taken = math.isfinite(norm)
        # All ranks have one norm, so that all of them or none enter this collective.
        result = OptimizerStep(norm, None if taken else self._not_finite(state), len(state))
        if taken:
            with self.residency.holding("optimizer"):
                self._move(factor)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return result

    def _move(self, factor: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            optimizer.step()

    def state(self) -> Mapping[str, nn.Parameter]:
        """The parameters by name, as the optimizer updates them: sharded, never gathered.

        Raises:
            TrainingError: weights are gathered.
        """
        return sharded_parameters(self.model)

    def without_adapter(self) -> AbstractContextManager[None]:
        """See ``TrainBackend.without_adapter``."""
        return (
            super().without_adapter() if self.model.lora is None else self.model.lora.off()
        )

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by the names of the model's folder; see ``full_weights``."""
        return full_weights(self.model, dtype)

    def parts(self, dtype: torch.dtype) -> Iterator[WeightPart]:
        """This rank's parts of what ``weights`` yields; see ``weight_parts``."""
        return weight_parts(self.model, dtype)

    def save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Writes weights, optimizer state and step."""
        self.begin_save(folder, step=step, purpose=purpose, source=source)
        self._writer.wait()

    def begin_save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Copies weights, optimizer state and step, and writes them beside what follows; see
        ``CheckpointWriter``."""
        state = training_state(self.model, self.optimizers)
        self._writer.begin(
            folder, state, self.model, step=step, purpose=purpose, source=source
        )

    def save_result(self, *, wait: bool) -> SaveResult | None:
        """What became of ``begin_save``; None while it is being written."""
        return self._writer.result(wait=wait)

    def load(self, folder: Path) -> int:
        """Goes on from a checkpoint of any backend; see ``load_checkpoint``."""
        return load_checkpoint(folder, self.model, self.optimizers)

    def export(self, source: Path, folder: Path) -> None:
        """Writes a Hugging Face folder; see ``export_model``."""
        export_model(self.model, self.weights(self.dtype), source, folder)

    def holding(self, *needs: Part) -> AbstractContextManager[None]:
        """See ``TrainBackend.holding``."""
        return self.residency.holding(*needs)

    def keep_away(self, parts: Collection[Part]) -> None:
        """See ``TrainBackend.keep_away``."""
        self.residency.keep_away(parts)
        if self.model_device.type == "cuda":
            # else this process keeps what the parts had
            torch.cuda.empty_cache()

    @property
    def model_device(self) -> torch.device:
        """Where the parameters lie."""
        return next(iter(self.model.parameters())).device

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter.detach() for parameter in self.state().values())

    def _moments(self) -> Iterator[Tensor]:
        for optimizer in self.optimizers:
            for values in optimizer.state.values():
                yield from (one for one in values.values() if isinstance(one, Tensor))

    def _not_finite(self, state: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
        """The parameters whose gradients are not finite on any rank."""
        flags = []
        for parameter in state.values():
            grad = parameter.grad
            flags.append(grad is not None and not bool(torch.isfinite(local(grad)).all()))
        anywhere = torch.tensor(flags, dtype=torch.int32, device=self.model_device)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        found = zip(state, anywhere.tolist(), strict=True)
        return tuple(name.removeprefix(PREFIX) for name, flag in found if flag)


def _open(spec: ModelSpec, asked: RoleModel, place: DistSpec) -> PackedModel:
    """The model for its device, not sharded yet, and mostly without its weights."""
    device = torch.device(place.device)
    model: PackedModel
    if asked.kind == "policy":
        inexact = _inexact(spec, place) if spec.deterministic else None
        if inexact:
            logger.warning(
                "run.deterministic: the trainer's logprobs differ from the sampler's by rounding, "
                "because %s (docs/engines.md, Deterministic mode)",
                inexact,
                extra={"event": "inexact_logprobs", "cause": inexact},
            )
        exact = spec.deterministic and not inexact
        model = policy = open_policy(spec, device, exact=exact)
        policy.entropy_gradient = asked.entropy_gradient
    else:
        kind = ValueModel if asked.kind == "values" else ScoreModel
        model = open_scores(kind, spec, device, head_seed=asked.head_seed)
    if spec.lora is not None:
        # one number's layer has no part of low rank, and may be new
        model.lora = open_lora(spec, spec.lora, model, whole_head=asked.kind != "policy")
    return model


def _inexact(spec: ModelSpec, place: DistSpec) -> str | None:
    """Why a policy is not computed in fixed shapes, as ``TorchEngine`` computes it; None where it
    is."""
    folder = Path(spec.model_path)
    known = not (folder / "config.json").is_file() or computed(read_config(folder))
    causes = {
        f"the device is {place.device}, not a CPU": torch.device(place.device).type
        != "cpu",
        f"{place.tp * place.sp} ranks hold a layer or a row together": place.tp * place.sp
        > 1,
        "train.compile fuses operations": spec.compile,
        "model.head_dtype is not float32, as the engine's output layer is": spec.dtype
        == "bfloat16"
        and spec.head_dtype is None,
        "the engine serves an adapter merged into its base (model.lora)": spec.lora
        is not None,
        "TorchEngine has no decoder of its own for its family": not known,
    }
    return next((cause for cause, holds in causes.items() if holds), None)


def info_of(model: PackedModel) -> ModelInfo:
    """Sizes of a model that is not sharded yet."""
    config: Any = model.config.get_text_config()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    num_active = num_parameters - sum(one.num_idle for one in model.mixtures())
    if model.tower is not None:
        num_active -= sum(
            parameter.numel() for parameter in model.tower.module.parameters()
        )
    # a token costs 6P in its products, and 6·2·n/2·width in the scores of each layer at length n
    scale = num_active / query_width(config)
    own = model.routing
    return ModelInfo(
        num_parameters,
        int(config.vocab_size),
        float(scale),
        max_positions(config),
        model.shares_prefixes,
        None if own is None else RoutingShape(own.num_layers, own.num_experts, own.top_k),
        num_active,
    )


def _use_deterministic_kernels() -> None:
    """Refuses kernels whose result depends on timing, and seeds torch, in this process.

    Call it before the first CUDA kernel, because cuBLAS reads its workspace setting once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
