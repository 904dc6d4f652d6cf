"""Execution: what stands between a call and its result beside the tool itself."""
