"""Task samplers: which task the next group plays (docs/curricula.md)."""
