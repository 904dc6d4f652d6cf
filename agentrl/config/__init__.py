"""The configuration of a run: its schema, and how a file with overrides becomes it."""

from __future__ import annotations

from agentrl.config.dump import flat_settings, to_yaml
from agentrl.config.load import LoadedConfig, load_config, load_with_origins, read_document
from agentrl.config.schema import RunConfig, StageConfig

__all__ = [
    "LoadedConfig",
    "RunConfig",
    "StageConfig",
    "flat_settings",
    "load_config",
    "load_with_origins",
    "read_document",
    "to_yaml",
]
