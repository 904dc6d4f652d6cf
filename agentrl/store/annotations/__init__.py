"""Annotations on disk: what is learned of trajectories that are stored already."""
