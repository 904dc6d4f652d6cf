"""The configuration of a run: its schema, and how a file with overrides becomes it."""

from __future__ import annotations

from agentrl.config.dump import to_yaml
from agentrl.config.load import LoadedConfig, load_config, load_with_origins
from agentrl.config.schema import RunConfig, StageConfig, StageEntry
from agentrl.config.sections import (
    CheckpointConfig,
    ControllerConfig,
    DataConfig,
    DebugConfig,
    EnvConfig,
    EvalConfig,
    EvalSetConfig,
    MetricsConfig,
    ModelConfig,
    RewardConfig,
    RewardFunctionConfig,
    RewardModelConfig,
    RunSection,
    ToolConfig,
)
from agentrl.config.train_sections import AlgorithmConfig, RolloutConfig, TrainConfig

__all__ = [
    "AlgorithmConfig",
    "CheckpointConfig",
    "ControllerConfig",
    "DataConfig",
    "DebugConfig",
    "EnvConfig",
    "EvalConfig",
    "EvalSetConfig",
    "LoadedConfig",
    "MetricsConfig",
    "ModelConfig",
    "RewardConfig",
    "RewardFunctionConfig",
    "RewardModelConfig",
    "RolloutConfig",
    "RunConfig",
    "RunSection",
    "StageConfig",
    "StageEntry",
    "ToolConfig",
    "TrainConfig",
    "load_config",
    "load_with_origins",
    "to_yaml",
]
