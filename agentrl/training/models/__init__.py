"""Models: a Hugging Face trunk over a packed row, and the heads of the roles."""
