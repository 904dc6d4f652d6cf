"""Render: converts messages to tokens, with one file for each family of chat templates."""

from __future__ import annotations

from agentrl.render.encode import Piece, PieceEncoder, Source
from agentrl.render.families.chatml import (
    CHATML_TEMPLATE,
    ChatMLRenderer,
    ChatMLStyle,
    chatml_pieces,
)
from agentrl.render.renderer import Renderer
from agentrl.render.renderer_spec import RendererSpec
from agentrl.render.template_renderer import TemplateRenderer
from agentrl.render.vision import (
    Pixels,
    image_positions,
    load_image_processor,
    prepare_pixels,
    sees_images,
)

__all__ = [
    "CHATML_TEMPLATE",
    "ChatMLRenderer",
    "ChatMLStyle",
    "Piece",
    "PieceEncoder",
    "Pixels",
    "Renderer",
    "RendererSpec",
    "Source",
    "TemplateRenderer",
    "chatml_pieces",
    "image_positions",
    "load_image_processor",
    "prepare_pixels",
    "sees_images",
]
