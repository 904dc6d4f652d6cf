"""Fork server: starts, reaches and ends sandbox hosts from their owner."""
