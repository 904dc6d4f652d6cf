"""Worker extension that a vLLM server loads, in its own environment: weights from a folder."""

from __future__ import annotations

from typing import Any


class FolderLoader:
    """Becomes a base of each rank's worker (``--worker-extension-cls``)."""

    model_runner: Any

    def load_agentrl_folder(self, folder: str) -> None:
        """Replaces the weights by those of a folder in the Hugging Face layout."""
        self.model_runner.reload_weights(weights_path=folder)
        # On a CPU a head multiplies by a packed copy of its weight. vLLM packs again what it has
        # read, and a head that is tied to the embedding is not read.
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if getattr(head, "cpu_linear", None) is not None:
            head.quant_method.process_weights_after_loading(head)
