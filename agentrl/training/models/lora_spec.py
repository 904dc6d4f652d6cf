"""LoRA specification: an adapter of low rank; also the section ``model.lora`` of the
configuration."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from agentrl.types.section import Count, Positive, Section, Words


class LoraSpec(Section):
    """An adapter (LoRA, arXiv:2106.09685) that is trained in place of the model's weights, which
    stay as they are; without ``rank`` and ``path`` there is none (docs/lora.md)."""

    rank: Count | None = None
    """Rank of each matrix that is added to a layer's weight; by default that of ``path``."""
    alpha: Positive | None = None
    """What is added counts ``alpha / rank`` times; by default 32, or as in ``path``."""
    targets: Words = ()
    """Names of layers, whole or their last parts, such as ``q_proj``; by default all linear layers
    of the blocks, or as in ``path``. Experts and embeddings have one only where they are named."""
    path: str | None = None
    """Folder of an adapter in peft's format, from the file's folder on, which training goes on
    from."""

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if not self.given and (self.alpha is not None or self.targets):
            raise self.broken(
                "rank", " is needed beside alpha and targets, or path is, got neither; set one"
            )
        return self

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return self.rank is not None or self.path is not None
