"""Messages to tokens, one template family a file."""

from __future__ import annotations

from agentrl.render.renderer import Renderer

__all__ = ["Renderer"]
