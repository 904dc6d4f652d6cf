"""Functions: what algorithms are made of: credit, advantages, losses, corrections, reductions."""
