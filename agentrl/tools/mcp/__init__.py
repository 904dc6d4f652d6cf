"""MCP: tools of servers that speak the Model Context Protocol (package ``mcp``, version 2)."""
