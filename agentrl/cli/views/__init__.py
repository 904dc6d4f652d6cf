"""What the commands print of a run and of a trajectory."""
