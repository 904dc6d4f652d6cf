"""Retention: which sealed trajectories a run keeps, and the record of those that it dropped."""
