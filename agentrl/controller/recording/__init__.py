"""Recording: what a stage writes of its steps."""
