"""Tools: define what the model can call, read its calls and run them."""

from __future__ import annotations

from agentrl.tools.base import FunctionTool, InvalidArgumentsError, Tool, ToolLimits
from agentrl.tools.builtin.calculator import CalculatorTool
from agentrl.tools.builtin.fetch_url import FetchUrlTool
from agentrl.tools.builtin.sandbox_tools import FilesTool, PythonTool, ShellTool
from agentrl.tools.builtin.submit import SubmitTool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.execution.faults import Endpoints
from agentrl.tools.executor import TokenEnds, ToolExecutor
from agentrl.tools.factory import ToolFactory, tool
from agentrl.tools.mcp.server_spec import McpServerSpec
from agentrl.tools.parsers import (
    HermesParser,
    PlainParser,
    ToolCallParser,
    load_parser,
    parser_for,
)
from agentrl.tools.resources import (
    ResourceReference,
    check_resources,
    close_owner,
    close_shared_tools,
    close_tools,
    open_resources,
    opened,
    owners_of,
    share,
)
from agentrl.tools.search.disk_index import DiskIndex
from agentrl.tools.search.retriever import Document, Hit, Retriever, SearchIndex
from agentrl.tools.search.search_tool import SearchClient, SearchTool
from agentrl.tools.signature import Resource
from agentrl.tools.threads import TOOL_THREADS, BoundedThreads
from agentrl.tools.toolset import ToolEntry, ToolReference, Toolset, resolve_tools
from agentrl.types.user_code.wall import DeadlineError

__all__ = [
    "TOOL_THREADS",
    "BoundedThreads",
    "CalculatorTool",
    "DeadlineError",
    "DiskIndex",
    "Document",
    "Endpoints",
    "FetchUrlTool",
    "FilesTool",
    "FunctionTool",
    "HermesParser",
    "Hit",
    "InvalidArgumentsError",
    "McpServerSpec",
    "PlainParser",
    "PythonTool",
    "Resource",
    "ResourceReference",
    "Retriever",
    "SearchClient",
    "SearchIndex",
    "SearchTool",
    "ShellTool",
    "SubmitTool",
    "TokenEnds",
    "Tool",
    "ToolCallParser",
    "ToolContext",
    "ToolEntry",
    "ToolExecutor",
    "ToolFactory",
    "ToolLimits",
    "ToolOutput",
    "ToolReference",
    "Toolset",
    "check_resources",
    "close_owner",
    "close_shared_tools",
    "close_tools",
    "load_parser",
    "open_resources",
    "opened",
    "owners_of",
    "parser_for",
    "resolve_tools",
    "share",
    "tool",
]
