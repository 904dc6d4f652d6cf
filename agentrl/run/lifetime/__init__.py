"""A run's life: its processes, its record, its signals, its interruption and its resumption."""
