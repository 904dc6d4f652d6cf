"""The configuration of a run: its schema, and how a file with overrides becomes it."""

from __future__ import annotations

from agentrl.run.config.dump import to_yaml
from agentrl.run.config.learning import AlgorithmConfig, OptimConfig, RolloutConfig, TrainConfig
from agentrl.run.config.load import LoadedConfig, load_config, load_with_origins
from agentrl.run.config.outcome import (
    CheckpointConfig,
    ControllerConfig,
    EvalConfig,
    EvalSetConfig,
    MetricsConfig,
    RunSection,
)
from agentrl.run.config.schema import RunConfig, StageConfig, StageEntry
from agentrl.run.config.task import (
    DataConfig,
    EnvConfig,
    ModelConfig,
    RewardConfig,
    RewardFunctionConfig,
    RewardModelConfig,
    SandboxConfig,
    SandboxLimitsConfig,
    ToolConfig,
)

__all__ = [
    "AlgorithmConfig",
    "CheckpointConfig",
    "ControllerConfig",
    "DataConfig",
    "EnvConfig",
    "EvalConfig",
    "EvalSetConfig",
    "LoadedConfig",
    "MetricsConfig",
    "ModelConfig",
    "OptimConfig",
    "RewardConfig",
    "RewardFunctionConfig",
    "RewardModelConfig",
    "RolloutConfig",
    "RunConfig",
    "RunSection",
    "SandboxConfig",
    "SandboxLimitsConfig",
    "StageConfig",
    "StageEntry",
    "ToolConfig",
    "TrainConfig",
    "load_config",
    "load_with_origins",
    "to_yaml",
]
