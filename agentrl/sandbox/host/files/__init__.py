"""Hostile folders: read, written, measured and removed without following a link."""
