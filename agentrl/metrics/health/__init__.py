"""Health: what is going wrong in training, told with its evidence (docs/health.md)."""
