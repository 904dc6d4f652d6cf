"""Types: the data that agentrl's parts exchange, in numpy and without torch."""

from __future__ import annotations

from agentrl.types.arrays import Experts, RoutingShape, frozen_ints
from agentrl.types.batch import Batch, BatchShard
from agentrl.types.blob import Blob, Image
from agentrl.types.completion import (
    Completion,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    StaleKV,
    TokenUsage,
)
from agentrl.types.dispatch import Collect, Dispatch, Part, register, registration
from agentrl.types.env import REWARD_STYLE, Action, Observation, StepResult, Task
from agentrl.types.messages import (
    CallProblem,
    CallRecord,
    Message,
    ParsedMessage,
    ProblemKind,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
    content_text,
    images_in,
    with_images,
)
from agentrl.types.seeds import seed_for
from agentrl.types.segment import (
    MediaSpan,
    Segment,
    SegmentKind,
    alternatives_side,
    concat_ids,
    concat_media,
    share_experts,
)
from agentrl.types.stats import Stat, Stats, UpdateStats
from agentrl.types.trajectory import (
    Purpose,
    Sample,
    Seat,
    Status,
    StatusKind,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentrl.types.user_code.load import file_modules, load_object
from agentrl.types.user_code.place import place_of_object, raised_at, users_traceback

__all__ = [
    "REWARD_STYLE",
    "Action",
    "Batch",
    "BatchShard",
    "Blob",
    "CallProblem",
    "CallRecord",
    "Collect",
    "Completion",
    "Dispatch",
    "EngineInfo",
    "Experts",
    "FinishReason",
    "GenerateRequest",
    "Image",
    "MediaSpan",
    "Message",
    "Observation",
    "ParsedMessage",
    "Part",
    "ProblemKind",
    "Purpose",
    "RoutingShape",
    "Sample",
    "SamplingParams",
    "Seat",
    "Segment",
    "SegmentKind",
    "StaleKV",
    "Stat",
    "Stats",
    "Status",
    "StatusKind",
    "StepResult",
    "Task",
    "TokenUsage",
    "ToolCall",
    "ToolErrorKind",
    "ToolResult",
    "ToolSpec",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "UpdateStats",
    "alternatives_side",
    "concat_ids",
    "concat_media",
    "content_text",
    "file_modules",
    "frozen_ints",
    "images_in",
    "load_object",
    "place_of_object",
    "raised_at",
    "register",
    "registration",
    "seed_for",
    "share_experts",
    "users_traceback",
    "with_images",
]
