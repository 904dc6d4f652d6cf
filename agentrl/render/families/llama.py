"""Llama family, 3.1 and 3.2: headed turns, calls as JSON with ``parameters``, ``ipython`` answers.

Their templates write one call a turn, and leave out the text beside it.
"""

from __future__ import annotations

from agentrl.render.families.family import Family

LLAMA = Family(
    name="llama",
    signs=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    stops=("<|eom_id|>", "<|end_of_text|>"),
)
