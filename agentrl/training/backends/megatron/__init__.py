"""Megatron backend: dense models on megatron-core's GPTModel, over tensor, pipeline and data
parallel ranks."""

from agentrl.training.backends.megatron.support import check_release

# Before a module of this package imports megatron-core.
check_release()
