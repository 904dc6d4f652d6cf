"""Index: finds trajectories of a run by query, sorts and counts them (docs/query.md)."""

from __future__ import annotations

from agentrl.viewer.index.query import QueryError, parse_query, quoted
from agentrl.viewer.index.run_index import Place, RunIndex, TaskRewards

__all__ = ["Place", "QueryError", "RunIndex", "TaskRewards", "parse_query", "quoted"]
