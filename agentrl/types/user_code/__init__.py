"""Objects of a user's code: how they are loaded, where they are, where they raised."""
