"""Viewer: shows what a run stored: trajectories, tokens, metrics, notes."""
