"""Export: trajectories of a run in one HTML file, which needs no server."""
