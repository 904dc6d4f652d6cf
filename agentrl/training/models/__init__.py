"""The models of the roles: a Hugging Face trunk over a packed row, and its heads."""
