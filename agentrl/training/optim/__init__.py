"""Optimizers and their learning-rate schedule."""
