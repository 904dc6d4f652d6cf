"""Rehearsal: what `agentrl check` and `agentrl try` do with a stage before a model does."""
