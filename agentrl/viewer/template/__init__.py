"""Template: a run's chat template, rendered where it can do no harm."""

from __future__ import annotations

from agentrl.viewer.template.process import ChatTemplateText, TemplateLimits

__all__ = ["ChatTemplateText", "TemplateLimits"]
