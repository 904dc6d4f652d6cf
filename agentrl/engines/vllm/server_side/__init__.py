"""Modules that a vLLM server loads in its own environment; nothing here is imported by agentrl."""
