"""Megatron backend: a policy in the layouts of megatron-core, with the numbers of ``plain``.

- A rank holds a stage of the layers, of which tensor parallelism may give it a part. Micro-batches
  go through the stages one forward and one backward at a time (1F1B, arXiv:2104.04473).
- The last stage alone answers: it computes losses, and the driver takes its ranks' results.
- Gradients are kept until a step, which sums them over data coordinates, never averaged.
- Weights, checkpoints and exports have the folder's names, so that they are those of any backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from agentrl.training.backends.backend import (
    Loss,
    MicroBatches,
    OptimizerStep,
    RoleModel,
    StatSum,
    TrainBackend,
)
from agentrl.training.backends.megatron.gpt_model import (
    PackedGPT,
    join_stages,
    megatron_config,
)
from agentrl.training.backends.megatron.sharded_adamw import MOMENTS, ShardedAdamW
from agentrl.training.backends.megatron.stage_names import Piece, StageNames
from agentrl.training.backends.megatron.support import (
    check_asked,
    check_device,
    check_model,
    unreadable_optimizer,
)
from agentrl.training.backends.packed_backend import info_of
from agentrl.training.data.packing import Packed
from agentrl.training.fsdp.checkpoint import CheckpointWriter, read_state, stored_keys
from agentrl.training.fsdp.export import export_model
from agentrl.training.models.computed_buffers import check_buffers
from agentrl.training.models.expert_loads import ExpertLoads
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.policy_model import PolicyModel, open_policy
from agentrl.training.names import PREFIX, torch_dtype
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.parallel.layout_rules import check_megatron
from agentrl.training.parallel.process_group import FULL, DistSpec, ExpertMesh, rank_mesh
from agentrl.training.parallel.shards import WeightPart, divided_as, local, offset
from agentrl.training.save_result import SaveResult


class MegatronBackend(TrainBackend):
    """``train.backend: megatron``.

    Args:
        policy: the folder's model, divided over tensor-parallel ranks and without its weights.
        place: this rank's.
        spec: of the model.
        asked: by the role.
    """

    name: ClassVar[str] = "megatron"
    optimizer: ShardedAdamW
    _spec: OptimSpec

    def __init__(
        self, policy: PolicyModel, place: DistSpec, spec: ModelSpec, asked: RoleModel
    ) -> None:
        info = info_of(policy)
        super().__init__(replace(info, shares_prefixes=False, routing=None), place)
        self._place, self._policy = place, policy
        self.dtype = torch_dtype(spec.dtype)
        if place.tp > 1:
            mesh = rank_mesh(place, FULL)
            policy.divide(mesh, ExpertMesh(mesh.data, mesh.tensor))
        self._forms = dict(policy.hf.named_parameters())
        """By name in transformers, on ``meta``: the shape of each tensor, and how it is divided."""
        named = f"{spec.setting}={spec.model_path!r}"
        self._stage = place.rank // place.tp % place.pp
        self._groups = {
            name: group for group in policy.names.groups for name in group.parameters
        }
        self._names = StageNames(
            self._forms,
            policy.config,
            tp=place.tp,
            pp=place.pp,
            stage=self._stage,
            named=named,
        )
        weights = policy.weights
        read = {
            name: self._forms[name].detach() if weights is None else weights.whole(name)
            for name in self._names.pieces
        }
        check_buffers(policy.hf, named)
        config = megatron_config(
            policy.config,
            place,
            self.dtype,
            qkv_bias=any(name.endswith("q_proj.bias") for name in self._forms),
            recompute=bool(spec.gradient_checkpointing),
        )
        self.model = PackedGPT(policy, config)
        self._parameters = dict(self.model.named_parameters())
        self._read = {name: local(part) for name, part in read.items()}
        with torch.no_grad():
            for name, part in self._read.items():
                piece = self._names.pieces[name]
                piece.put(part, self._parameters[piece.parameter])
        self.model.to(place.device)
        self._writer = CheckpointWriter()
        self._chunk: nn.Module = self.model
        if asked.trains:
            ddp = DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=True
            )
            self._chunk = DistributedDataParallel(config, ddp, self.model)
        policy.weights = None

    @classmethod
    def build(cls, spec: ModelSpec, asked: RoleModel, place: DistSpec) -> MegatronBackend:
        """See ``TrainBackend.build``."""
        check_asked(spec, asked, place)
        check_model(spec, place)
        check_device()
        policy = open_policy(spec, torch.device(place.device))
        policy.head_dtype = (
            None if spec.head_dtype is None else torch_dtype(spec.head_dtype)
        )
        policy.entropy_gradient = asked.entropy_gradient
        join_stages(place)
        return cls(policy, place, spec, asked)

    def run(self, micro_batches: MicroBatches, loss: Loss) -> StatSum:
        """See ``TrainBackend.run``; the last stage has the statistics."""
        place, stats = self._place, StatSum()
        routing = self._policy.routing
        loads = (
            None if routing is None else ExpertLoads(routing, torch.device(place.device))
        )
        rows = list(micro_batches)
        self._schedule(
            rows, lambda packed, answer: loss(packed, answer, stats), loads=loads
        )
        if loads is not None:
            # Ranks have other tokens, and stages other layers.
            loads.sum_over_ranks()
            answers = place.is_first_of_data and place.rank < place.tp * place.pp
            for name, value in loads.metrics().items() if answers else ():
                stats.add(name, torch.tensor(value, dtype=torch.float64), 1)
        return stats

    def infer(
        self, micro_batches: Iterable[Packed], take: Callable[[Packed, Any], None]
    ) -> None:
        """See ``TrainBackend.infer``; the last stage has the answers."""

        def taken(packed: Packed, answer: Any) -> Tensor:
            take(packed, answer)
            return torch.zeros((), device=packed.token_ids.device)

        with torch.no_grad():
            self._schedule(list(micro_batches), taken, forward_only=True)

    def _schedule(
        self,
        rows: list[Packed],
        scalar: Callable[[Packed, Any], Tensor],
        *,
        forward_only: bool = False,
        loads: ExpertLoads | None = None,
    ) -> None:
        """Sends rows through the stages, of which the last makes a scalar of each answer; counts
        which experts of this one computed them."""
        none = torch.zeros((), dtype=torch.int, device=self._place.device)

        def forward(left: Iterator[Packed], chunk: nn.Module) -> Any:
            packed = next(left)
            found = chunk(packed)
            if loads is not None:
                loads.add(packed.copies)
            return found, lambda answer: (scalar(packed, answer), none, {})

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(rows),
            model=[self._chunk],
            num_microbatches=len(rows),
            # Of rows of other lengths Megatron asks the stage before.
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def optimize_by(self, spec: OptimSpec) -> None:
        """See ``TrainBackend.optimize_by``.

        Raises:
            ConfigError: the optimizer is not AdamW.
        """
        check_megatron({"OptimSpec.name": spec.name})
        assert isinstance(self._chunk, DistributedDataParallel), "the role trains"
        self.optimizer = ShardedAdamW(self._chunk, spec)
        # What the forward rounds, the optimizer keeps as the folder has it.
        self._set_weights(self._read)
        self._read = {}

    def step(self, factor: float, clip_grad_norm: float | None) -> OptimizerStep:
        """See ``TrainBackend.step``."""
        self.optimizer.sum_gradients()
        norm = self.optimizer.norm(self._copies())
        taken = math.isfinite(norm)
        result = OptimizerStep(
            norm, None if taken else self._not_finite(), len(self._forms)
        )
        if taken:
            most = norm if clip_grad_norm is None else clip_grad_norm
            self.optimizer.move(factor, most / norm if norm > most else 1.0)
        self.optimizer.forget()
        return result

    def _copies(self) -> set[int]:
        """Ids of parameters that another rank of the data coordinate counts."""
        pieces = self._names.pieces.items()
        return {
            id(self._parameters[piece.parameter])
            for name, piece in pieces
            if piece.is_copy or self._is_repeated(name)
        }

    def _is_repeated(self, name: str) -> bool:
        """Whether tensor-parallel ranks all have a tensor, and this one is not the first."""
        return (
            not isinstance(self._forms[name], DTensor)
            and self._place.rank % self._place.tp > 0
        )

    def _not_finite(self) -> tuple[str, ...]:
        """The parameters whose gradients are not finite on any rank."""
        flags = dict.fromkeys(self._forms, False)
        for name, part in self._values(self.optimizer.gradient):
            flags[name] = not bool(torch.isfinite(part).all())
        anywhere = torch.tensor(
            [*flags.values()], dtype=torch.int32, device=self._place.device
        )
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        found = zip(flags, anywhere.tolist(), strict=True)
        return tuple(name for name, flag in found if flag)

    def state(self) -> Mapping[str, nn.Parameter]:
        """This stage's parameters by Megatron's names."""
        return self._parameters

    def _values(self, of: Callable[[nn.Parameter], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of each tensor of the folder, of what ``of`` gives for a parameter."""
        made: dict[str, Tensor] = {}
        for name, piece in self._names.pieces.items():
            if piece.parameter not in made:
                # The tensors of one parameter follow each other.
                made = {piece.parameter: of(self._parameters[piece.parameter])}
            yield name, piece.of(made[piece.parameter])

    def _weight(self, dtype: torch.dtype) -> Callable[[nn.Parameter], Tensor]:
        """How a weight is served: rounded once, from what the optimizer keeps."""
        if dtype.itemsize > self.dtype.itemsize and hasattr(self, "optimizer"):
            return lambda one: self.optimizer.weight(one).to(dtype)
        return lambda one: one.detach().to(dtype)

    @torch.no_grad()
    def parts(self, dtype: torch.dtype) -> Iterator[WeightPart]:
        """See ``TrainBackend.parts``; nothing is sent."""
        repeats = self._place.rank // (self._place.tp * self._place.pp) > 0
        names = self._policy.names
        for name, part in self._values(self._weight(dtype)):
            form, group = self._forms[name], self._groups[name]
            is_copy = repeats or self._is_repeated(name) or self._names.pieces[name].is_copy
            if group.is_renamed:
                (called,) = group.tensors
                yield WeightPart(called, tuple(form.shape), offset(form), part, is_copy)
                continue
            for called, whole in names.revert_experts(group, part, offset(form)[0]).items():
                shape = tuple(whole.shape)
                yield WeightPart(called, shape, (0,) * len(shape), whole, is_copy)

    @torch.no_grad()
    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """See ``TrainBackend.weights``; a rank receives the parts that it lacks, each once."""
        place = self._place
        group = parallel_state.get_model_parallel_group()
        first = place.rank - place.rank % (place.tp * place.pp)
        own = dict(self._values(self._weight(dtype)))
        for name, form in self._forms.items():
            start = first + self._names.stage_of(name) * place.tp
            ranks = range(start, start + (place.tp if isinstance(form, DTensor) else 1))
            parts = []
            for rank in ranks:
                part = own.get(name) if rank == place.rank or len(ranks) == 1 else None
                if part is None:
                    part = torch.empty(local(form).shape, dtype=dtype, device=place.device)
                if place.tp * place.pp > 1:
                    part = part.contiguous()
                    dist.broadcast(part, rank, group=group)
                parts.append(part)
            whole = parts[0] if len(parts) == 1 else torch.cat(parts, _dimension(form))
            yield from self._policy.names.revert(self._groups[name], {name: whole}).items()

    def save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Writes weights, optimizer state and step."""
        self.begin_save(folder, step=step, purpose=purpose, source=source)
        self._writer.wait()

    def begin_save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Copies weights, optimizer state and step under the folder's names, and writes them beside
        what follows; see ``CheckpointWriter``."""
        self._writer.begin(
            folder, self._state(), self._policy, step=step, purpose=purpose, source=source
        )

    def save_result(self, *, wait: bool) -> SaveResult | None:
        """What became of ``begin_save``; None while it is being written."""
        return self._writer.result(wait=wait)

    @torch.no_grad()
    def _state(self) -> dict[str, Tensor]:
        """What a checkpoint of any backend holds, on the host."""
        kinds: dict[str, Callable[[nn.Parameter], Tensor]]
        kinds = {f"model.{PREFIX}%s": self.optimizer.weight}
        steps = self.optimizer.steps
        if steps is not None:
            for moment in MOMENTS:
                kinds[_moment_key(moment)] = partial(self.optimizer.moment, name=moment)
        state = {}
        for key, of in kinds.items():
            for name, part in self._values(of):
                if not self._names.pieces[name].is_copy:
                    state[key % name] = divided_as(
                        self._forms[name], part.contiguous().cpu()
                    )
        if steps is not None:
            for name, piece in self._names.pieces.items():
                if not piece.is_copy:
                    state[_moment_key("step") % name] = steps
        return state

    def load(self, folder: Path) -> int:
        """Goes on from a checkpoint of any backend and layout.

        Raises:
            StoreError: it is corrupt, or its optimizer is not AdamW of the same model.
        """
        stored = stored_keys(folder)
        weights = {f"model.{PREFIX}{name}" for name in self._forms}
        is_new = not any(key.startswith("optimizer.") for key in stored)
        kinds = () if is_new else (*MOMENTS, "step")
        moments = {_moment_key(kind) % name for kind in kinds for name in self._forms}
        odd = sorted(stored ^ (weights | moments | {"step"}))
        if odd:
            raise unreadable_optimizer(folder, odd)
        state: dict[str, Tensor] = {"step": torch.tensor(0)}
        for name in self._names.pieces:
            like = self._forms[name]
            for key in (f"model.{PREFIX}%s", *map(_moment_key, kinds)):
                shape = () if key.endswith("/step") else local(like).shape
                part = torch.zeros(shape)
                state[key % name] = (
                    part if key.endswith("/step") else divided_as(like, part)
                )
        read_state(folder, state)
        parts = {
            kind: {name: local(state[key % name]) for name in self._names.pieces}
            for kind, key in [
                ("", f"model.{PREFIX}%s"),
                *((k, _moment_key(k)) for k in kinds),
            ]
        }
        self._set_weights(parts[""])
        if not is_new:
            moved = {kind: dict(self._joined(parts[kind])) for kind in MOMENTS}
            for name, piece in self._names.pieces.items():
                self.optimizer.set_moments(
                    self._parameters[piece.parameter],
                    float(parts["step"][name]),
                    {kind: moved[kind][piece.parameter] for kind in MOMENTS},
                )
        return int(state["step"])

    def _set_weights(self, parts: Mapping[str, Tensor]) -> None:
        for name, whole in self._joined(parts):
            self.optimizer.set_weight(self._parameters[name], whole)

    def _joined(self, parts: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Parameters of the parts of the folder's tensors, by Megatron's names."""
        pieces: dict[str, list[tuple[Piece, Tensor]]] = {}
        for name, piece in self._names.pieces.items():
            pieces.setdefault(piece.parameter, []).append((piece, parts[name]))
        for parameter, own in pieces.items():
            whole = torch.empty(self._parameters[parameter].shape)
            for piece, part in own:
                piece.put(part, whole)
            yield parameter, whole

    def export(self, source: Path, folder: Path) -> None:
        """Writes a Hugging Face folder; see ``export_model``."""
        export_model(self._policy, self.weights(self.dtype), source, folder)


def _moment_key(kind: str) -> str:
    """The key of a parameter's optimizer state in a checkpoint."""
    return f"optimizer.0.{PREFIX}%s/{kind}"


def _dimension(form: Tensor) -> int:
    """By which tensor-parallel ranks divide a tensor."""
    assert isinstance(form, DTensor), "others have it whole"
    (placement,) = form.placements
    assert isinstance(placement, Shard), "layers are divided so"
    return int(placement.dim)
