"""Worker extension that a vLLM server loads, in its own environment: new weights, from a folder, in
calls, from memory that both sides see, or from a process group of the trainer's.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import (
    Backend,
    PrefixStore,
    _new_process_group_helper,
    _world,
)
from torch.multiprocessing import reductions

_DEVICE = 6
"""Of the arguments of ``rebuild_cuda_tensor``."""


class WeightLoader:
    """Becomes a base of each rank's worker (``--worker-extension-cls``)."""

    model_runner: Any
    vllm_config: Any
    device: torch.device
    rank: int

    def load_agentrl_folder(self, folder: str) -> None:
        """Replaces the weights by those of a folder in the Hugging Face layout."""
        self.model_runner.reload_weights(weights_path=folder)
        _pack_head(self.model_runner.get_model())

    def begin_agentrl_update(self) -> None:
        """Before the first tensor of an update, which must have all tensors."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._own["open"] = True
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(self.model_runner.get_model())

    def load_agentrl_tensors(self, by_rank: list[str], form: str) -> None:
        """Loads whole tensors by their Hugging Face names.

        Args:
            by_rank: in base64, for each rank, or one for all of them.
            form: ``safetensors``, or ``shared``: pickled by where they lie in memory.
        """
        data = base64.b64decode(by_rank[self.rank % len(by_rank)])
        if form == "safetensors":
            from safetensors.torch import load

            self._load(load(data).items())
        else:
            self._load(_Unpickler(io.BytesIO(data)).load())

    def join_agentrl_group(
        self, name: str, host: str, port: int, first: int, world_size: int, backend: str
    ) -> None:
        """Joins a group of the trainer's, whose side makes it by the same function of torch's."""
        timeout = timedelta(minutes=10)
        store = torch.distributed.TCPStore(
            host, port, is_master=False, timeout=timeout, wait_for_workers=False
        )
        group, _ = _new_process_group_helper(
            world_size,
            first + self.rank,
            [],
            Backend(backend),
            PrefixStore(name, store),
            group_name=name,
            timeout=timeout,
        )
        _world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
        device = self.device if backend == "nccl" else torch.device("cpu")
        self._own["groups"][name] = group, device

    def leave_agentrl_groups(self) -> None:
        """Leaves all that it joined."""
        while groups := self._own["groups"]:
            _, (group, _) = groups.popitem()
            torch.distributed.destroy_process_group(group)

    def receive_agentrl_tensors(
        self, name: str, names: list[str], dtypes: list[str], shapes: list[list[int]]
    ) -> None:
        """Loads tensors that a group's first rank broadcasts in this order."""
        group, device = self._own["groups"][name]
        made = []
        for own, dtype, shape in zip(names, dtypes, shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            options = torch.distributed.BroadcastOptions()
            options.rootRank = 0
            group.broadcast([tensor], options).wait()
            made.append((own, tensor))
        self._load(made)

    def end_agentrl_update(self) -> None:
        """After the last tensor of an update; nothing where none is open."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if not self._own["open"]:
            return
        runner = self.model_runner
        model = runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(model, self.vllm_config.model_config)
        # as vLLM's own ``reload_weights`` does
        runner.reset_lora_state()
        runner.reset_encoder_cache()
        runner.reset_mm_cache()
        _pack_head(model)
        self._own["open"] = False

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        from vllm.config import set_current_vllm_config

        # A layer keeps what it is given until it has all of its tensors, and the sender writes the
        # next ones into the same memory.
        own = [(name, tensor.to(self.device, copy=True)) for name, tensor in tensors]
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(own)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def _own(self) -> dict[str, Any]:
        """Whether an update is open, and the groups by name; a base of a worker has no
        constructor."""
        own: dict[str, Any] = vars(self).setdefault(
            "_agentrl", {"open": False, "groups": {}}
        )
        return own


def _pack_head(model: Any) -> None:
    """On a CPU a head multiplies by a packed copy of its weight. vLLM packs again what it has read,
    and a head that is tied to the embedding is not read."""
    head = getattr(model, "lm_head", None)
    if getattr(head, "cpu_linear", None) is not None:
        head.quant_method.process_weights_after_loading(head)


def _rebuild_on_gpu(*given: Any) -> Tensor:
    """The sender names the GPU by its UUID: each process numbers those that it sees."""
    seen = range(torch.cuda.device_count())
    by_uuid = {str(torch.cuda.get_device_properties(index).uuid): index for index in seen}
    if given[_DEVICE] not in by_uuid:
        raise RuntimeError(
            f"the weights lie on GPU {given[_DEVICE]}, and this server sees {[*by_uuid]}; start it "
            "on the trainer's GPUs, or set rollout.vllm.weight_sync=http"
        )
    arguments = (*given[:_DEVICE], by_uuid[given[_DEVICE]], *given[_DEVICE + 1 :])
    tensor: Tensor = reductions.rebuild_cuda_tensor(*arguments)
    return tensor


_REBUILT = {
    "rebuild_storage_filename": reductions.rebuild_storage_filename,
    "rebuild_typed_storage": reductions.rebuild_typed_storage,
    "rebuild_tensor": reductions.rebuild_tensor,
    "rebuild_cuda_tensor": _rebuild_on_gpu,
}
_CLASSES = {
    ("torch", "Size"): torch.Size,
    ("torch", "Tensor"): Tensor,
    ("torch.storage", "TypedStorage"): torch.storage.TypedStorage,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
}


class _Unpickler(pickle.Unpickler):
    """Makes tensors alone: all who reach the server can send it a pickle."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.multiprocessing.reductions" and name in _REBUILT:
            return _REBUILT[name]
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        dtype = getattr(torch, name, None) if module == "torch" else None
        if not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"{module}.{name} makes no tensor")
        return dtype
