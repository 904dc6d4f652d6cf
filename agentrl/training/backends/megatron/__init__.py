"""Megatron backend: dense models on megatron-core's GPTModel, over tensor, pipeline and data
parallel ranks."""
