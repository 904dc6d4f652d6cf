"""Outlets: where a run's numbers and the times of its steps go beside the run directory."""
