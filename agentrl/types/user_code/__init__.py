"""User code: loads objects, tells where they are and raised, and copies what they are given."""
