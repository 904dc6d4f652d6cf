"""Chat-template families: one renderer a family, and the detection of a family."""
