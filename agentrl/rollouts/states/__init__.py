"""States: of episodes for a checkpoint, and of environments for a trajectory."""
