"""Confinement: what a slot and the code that it runs are bounded by, in raw system calls."""
