"""Trajectories on disk: rows, live files, sealed shards, their writer and reader."""
