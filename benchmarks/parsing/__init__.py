"""Parsing: the texts that parsers are timed on."""

from __future__ import annotations

from benchmarks.parsing.texts import PARSERS, TEXTS, of_length

__all__ = ["PARSERS", "TEXTS", "of_length"]
