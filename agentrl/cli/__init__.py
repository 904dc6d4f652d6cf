"""Command line: a file holds one command, or those that belong together."""
