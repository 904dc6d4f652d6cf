"""Sharded AdamW: Megatron's distributed optimizer, each rank with a flat range of every parameter
that is its own, and the whole numbers of a parameter for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from torch import Tensor, nn

from agentrl.training.optim.optim_spec import OptimSpec

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """The optimizer of a stage.

    Args:
        chunk: the stage, in Megatron's DDP.
        spec: of AdamW.
    """

    def __init__(self, chunk: DistributedDataParallel, spec: OptimSpec) -> None:
        self._chunk, self._spec = chunk, spec
        config = OptimizerConfig(
            optimizer="adam",
            lr=spec.lr,
            weight_decay=spec.weight_decay,
            adam_beta1=spec.betas[0],
            adam_beta2=spec.betas[1],
            adam_eps=spec.eps,
            clip_grad=0.0,
            bf16=chunk.module.config.bf16,
            params_dtype=chunk.module.config.params_dtype,
            use_distributed_optimizer=True,
        )
        # No overrides: weight decay is of every parameter, as in the other backends.
        chained = get_megatron_optimizer(config, [chunk], {}, use_gloo_process_groups=False)
        (self._sharded,) = chained.chained_optimizers
        self._group = parallel_state.get_data_parallel_group(with_context_parallel=True)

    def sum_gradients(self) -> None:
        """Sums gradients over data coordinates, of tied weights over stages and of norms of heads
        over tensor-parallel ranks."""
        finalize_model_grads([self._chunk])
        self._sharded.prepare_grads()

    def norm(self, copies: Collection[int]) -> float:
        """Of the whole gradient, equal on all ranks; those with an id in ``copies`` are
        counted elsewhere."""
        own = [
            main.grad
            for parameter, _, main in self._shards()
            if id(parameter) not in copies
        ]
        squares = torch.nn.utils.get_total_norm(own).double() ** 2
        squares = squares.to(next(self._chunk.parameters()).device)
        dist.all_reduce(squares)
        return math.sqrt(float(squares))

    @torch.no_grad()
    def move(self, factor: float, scale: float) -> None:
        """Takes a step by ``scale`` times the gradient."""
        if scale != 1.0:
            for _, _, main in self._shards():
                main.grad.mul_(scale)
        for group in self._sharded.optimizer.param_groups:
            group["lr"] = self._spec.lr * factor
        self._sharded.step_with_ready_grads()

    def forget(self) -> None:
        """Forgets the gradients."""
        self._chunk.zero_grad_buffer()
        self._sharded.zero_grad()

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """The whole of a summed gradient; every rank of the stage's data coordinates calls it."""
        return self._whole(parameter, lambda main: main.grad)

    def weight(self, parameter: nn.Parameter) -> Tensor:
        """The weight in float32, as the optimizer updates it; collective as ``gradient``."""
        return self._whole(parameter, lambda main: main.detach())

    def moment(self, parameter: nn.Parameter, name: str) -> Tensor:
        """A moment, zeros before the first step; collective as ``gradient``."""

        def own(main: Tensor) -> Tensor:
            kept = self._sharded.optimizer.state[main].get(name)
            return torch.zeros_like(main) if kept is None else kept

        return self._whole(parameter, own)

    @property
    def steps(self) -> Tensor | None:
        """Steps taken, as AdamW counts them; None before the first."""
        for _, _, main in self._shards():
            found: Tensor | None = self._sharded.optimizer.state[main].get("step")
            return found
        return None

    @torch.no_grad()
    def set_weight(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """Sets a weight, and what the optimizer keeps of it in float32."""
        parameter.copy_(whole)
        for first, main in self._own(parameter):
            main.copy_(whole.view(-1)[first : first + main.numel()])

    @torch.no_grad()
    def set_moments(
        self, parameter: nn.Parameter, steps: float, moments: dict[str, Tensor]
    ) -> None:
        """Sets the state of a parameter."""
        for first, main in self._own(parameter):
            state = self._sharded.optimizer.state[main]
            state["step"] = torch.tensor(steps, dtype=torch.float32)
            for name, whole in moments.items():
                own = whole.view(-1)[first : first + main.numel()]
                state[name] = own.to(main.device, copy=True)

    def _shards(self) -> Iterator[tuple[nn.Parameter, int, Any]]:
        """This rank's ranges: the parameter, where the range begins, and the optimizer's tensor."""
        for parameter, (group, place) in self._sharded.model_param_group_index_map.items():
            found = self._sharded._get_model_param_range_map(parameter)["param"]
            main = self._sharded.optimizer.param_groups[group]["params"][place]
            yield parameter, found.start, main

    def _own(self, parameter: nn.Parameter) -> Iterator[tuple[int, Tensor]]:
        for one, first, main in self._shards():
            if one is parameter:
                yield first, main

    @torch.no_grad()
    def _whole(self, parameter: nn.Parameter, of: Callable[[Tensor], Any]) -> Tensor:
        whole = torch.zeros_like(parameter, dtype=torch.float32)
        for first, main in self._own(parameter):
            whole.view(-1)[first : first + main.numel()] = of(main)
        # Ranges are disjoint, so that a sum joins them.
        dist.all_reduce(whole, group=self._group)
        return whole
