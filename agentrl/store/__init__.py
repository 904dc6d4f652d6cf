"""Store: trajectories on disk in a run directory (docs/run-directory.md)."""

from __future__ import annotations

from agentrl.store.annotations.annotation import Annotation, AnnotationColumn
from agentrl.store.annotations.rollbacks import record_resume
from agentrl.store.disk import replacing, write_bytes, write_failure, write_json, write_text
from agentrl.store.heartbeat import Heartbeat, RunState, RunWatch
from agentrl.store.jsonl import JsonlWriter, keep_lines, read_jsonl
from agentrl.store.logs import EventLevel, EventLog, logging_to
from agentrl.store.run_directory import RunDirectory
from agentrl.store.store_spec import Detail, KeepSpec, StoreSpec
from agentrl.store.trajectories.codec import decode_trajectory, encode_trajectory
from agentrl.store.trajectories.columns import TokenArrays
from agentrl.store.trajectories.files import read_shard, write_shard
from agentrl.store.trajectories.listing import TrajectorySummary
from agentrl.store.trajectories.reader import (
    NoTrajectoryError,
    StoredTrajectory,
    TrajectoryReader,
)
from agentrl.store.trajectories.writer import TrajectoryWriter, WriterCounts

__all__ = [
    "Annotation",
    "AnnotationColumn",
    "Detail",
    "EventLevel",
    "EventLog",
    "Heartbeat",
    "JsonlWriter",
    "KeepSpec",
    "NoTrajectoryError",
    "RunDirectory",
    "RunState",
    "RunWatch",
    "StoreSpec",
    "StoredTrajectory",
    "TokenArrays",
    "TrajectoryReader",
    "TrajectorySummary",
    "TrajectoryWriter",
    "WriterCounts",
    "decode_trajectory",
    "encode_trajectory",
    "keep_lines",
    "logging_to",
    "read_jsonl",
    "read_shard",
    "record_resume",
    "replacing",
    "write_bytes",
    "write_failure",
    "write_json",
    "write_shard",
    "write_text",
]
