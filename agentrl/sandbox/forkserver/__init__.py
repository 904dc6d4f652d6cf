"""The fork server: sandbox hosts as their owner starts, reaches and ends them."""
