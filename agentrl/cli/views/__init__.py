"""Views: print runs and trajectories."""
