"""Roles on one rank: actor, reference and reward model."""
