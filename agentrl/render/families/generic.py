"""Generic family: any template that ends an assistant's turn with an added token."""

from __future__ import annotations

from agentrl.render.families.family import Family

__all__ = ["GENERIC"]

GENERIC = Family(name="generic")
