"""How the trainer's weights reach the engines: into one in this process, or to servers in one of three ways."""

from __future__ import annotations

from agentrl.controller.weights.bucket import BucketSender
from agentrl.controller.weights.folder import FolderSender
from agentrl.controller.weights.in_process import WeightsReport, publish_in_process
from agentrl.controller.weights.process_group import GroupSender

__all__ = ["BucketSender", "FolderSender", "GroupSender", "WeightsReport", "publish_in_process"]
