"""What ``benchmarks.mcp_kills`` measures with."""
