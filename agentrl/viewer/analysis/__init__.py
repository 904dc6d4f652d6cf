"""Analysis: what a run's trajectories show beside each other: changes, parts, differences."""
