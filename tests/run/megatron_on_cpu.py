"""The Megatron backend in a process without a GPU, whose ``torch.cuda`` is the tests' until it
ends: ``train.backend: tests.run.megatron_on_cpu:MegatronBackend``."""

from __future__ import annotations

from tests.training.cuda_stand_in import cuda_stand_in

_HELD = cuda_stand_in()
_HELD.__enter__()

from agentrl.training.backends.megatron.backend import MegatronBackend  # noqa: E402

__all__ = ["MegatronBackend"]
