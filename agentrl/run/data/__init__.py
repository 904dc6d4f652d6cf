"""Data sets of a run: references in the configuration become tasks."""
