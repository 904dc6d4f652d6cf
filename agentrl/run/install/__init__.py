"""Installation: pip with progress, and the environment of SGLang servers."""
