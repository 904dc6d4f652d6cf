"""Families: the specifics of each family of chat templates, and their detection."""
