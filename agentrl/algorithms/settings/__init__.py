"""Algorithm settings: the section of each built-in algorithm.

They need no torch, so that a file is checked without it.
"""
