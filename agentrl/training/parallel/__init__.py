"""Parallel layouts: the process group, its ranks on a mesh, tensor and sequence parallelism."""
