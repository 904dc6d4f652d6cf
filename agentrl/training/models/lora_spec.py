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
    """Rank of each matrix that is added to a layer's weight."""
    alpha: Positive | None = None
    """What is added counts ``alpha / rank`` times; by default 32."""
    targets: Words = ()
    """Names of layers, whole or their last parts, such as ``q_proj``; by default all linear layers
    of the blocks. The embedding, and stacks of experts such as ``experts.down_proj``, have one only
    where they are named."""
    path: str | None = None
    """Folder of an adapter in peft's format, from the file's folder on, which training goes on
    from; its rank, alpha and targets are its own."""

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if self.path is not None and (self.rank, self.alpha, self.targets) != (
            None,
            None,
            (),
        ):
            raise self.broken(
                "path",
                f"={self.path!r} has rank, alpha and targets of its own, got others beside it; "
                "leave them out",
            )
        if not self.given and (self.alpha is not None or self.targets):
            raise self.broken(
                "rank",
                " is needed beside alpha and targets, got none; set it, or leave them out",
            )
        return self

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return self.rank is not None or self.path is not None
