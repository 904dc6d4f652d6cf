"""Messages to tokens, one template family a file."""

from __future__ import annotations

from agentrl.render.chatml import ChatMLRenderer, ChatMLStyle
from agentrl.render.encode import Piece, PieceEncoder, Source
from agentrl.render.renderer import Renderer
from agentrl.render.spec import RendererSpec, load_tokenizer

__all__ = [
    "ChatMLRenderer",
    "ChatMLStyle",
    "Piece",
    "PieceEncoder",
    "Renderer",
    "RendererSpec",
    "Source",
    "load_tokenizer",
]
