"""A run: its configuration, and what is made of it."""
