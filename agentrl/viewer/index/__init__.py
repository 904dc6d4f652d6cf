"""Index: finds trajectories of a run by query, sorts and counts them (docs/query.md)."""

from __future__ import annotations

from agentrl.viewer.index.query import Query, QueryError, parse_query, quoted
from agentrl.viewer.index.run_index import Page, RunIndex

__all__ = ["Page", "Query", "QueryError", "RunIndex", "parse_query", "quoted"]
