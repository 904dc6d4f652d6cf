"""Runs: one slot a sandbox, one child a run, and the watch over both."""
