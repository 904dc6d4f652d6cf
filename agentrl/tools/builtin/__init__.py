"""Built-in tools: those that ``env.tools`` names by one word."""
