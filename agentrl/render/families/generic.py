"""Generic family: any template that ends an assistant's turn with an added token."""

from __future__ import annotations

from agentrl.render.families.family import Family

GENERIC = Family(name="generic")
