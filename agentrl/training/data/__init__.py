"""What a role trains on: partition, packing, prefix tree, attention; demonstrations and preference pairs."""
