"""What an SGLang server runs of ours, by the interpreter of its own environment."""
