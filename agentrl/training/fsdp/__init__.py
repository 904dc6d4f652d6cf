"""FSDP2: sharding, gradients, checkpoints, weights and export of a role's model."""
