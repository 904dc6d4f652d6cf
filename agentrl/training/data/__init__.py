"""Training data: partition, packing, attention, demonstrations and preferences."""
