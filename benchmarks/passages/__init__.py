"""Passages: real English of Debian packages, as a corpus, and who is asked for it."""
