"""Train backends: how a role's model is held, run and moved: FSDP2 over ranks, or one process."""
