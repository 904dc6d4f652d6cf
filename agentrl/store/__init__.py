"""Store: trajectories on disk in a run directory (docs/run-directory.md)."""

from __future__ import annotations

from agentrl.store.atomic import replacing, write_bytes, write_json, write_text
from agentrl.store.events import EventLevel, EventLog
from agentrl.store.jsonl import JsonlWriter, keep_lines, read_jsonl
from agentrl.store.log_file import logging_to
from agentrl.store.masking import SecretMask
from agentrl.store.run_directory import RunDirectory
from agentrl.store.trajectories.annotations import Annotation
from agentrl.store.trajectories.codec import decode_trajectory, encode_trajectory
from agentrl.store.trajectories.reader import StoredTrajectory, TrajectoryReader, TrajectorySummary
from agentrl.store.trajectories.shard import read_shard, write_shard
from agentrl.store.trajectories.token_arrays import TokenArrays
from agentrl.store.trajectories.writer import TrajectoryWriter, WriterCounts
from agentrl.store.write_error import write_failure

__all__ = [
    "Annotation",
    "EventLevel",
    "EventLog",
    "JsonlWriter",
    "RunDirectory",
    "SecretMask",
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
    "replacing",
    "write_bytes",
    "write_failure",
    "write_json",
    "write_shard",
    "write_text",
]
