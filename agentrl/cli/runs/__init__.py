"""Commands that read a run: one module a command."""
