"""Runs: what the viewer holds of each run, read as it is asked for."""
