"""User code: loads objects, and tells where they are and where they raised."""
