"""Confinement: bounds a slot and the code that it runs, by raw system calls."""
