"""Tiny model: builds a random Qwen3, Qwen3-MoE or Qwen3-VL and its tokenizer as a Hugging Face
folder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.render import CHATML_TEMPLATE, ChatMLStyle, chatml_pieces
from agentrl.types import seed_for

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IMAGES = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_PATCH, _MERGE = 4, 2
# Qwen marks these special=False, and so does a model that should behave as its models do.
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# Single digits, so that numbers are copied digit by digit. Unlike Qwen's, a word does not include
# the space before it, so that a name has the same tokens in a question, a call and a document.
_WORDS = r"\p{N}|\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"


def build_tiny_model(
    folder: str | Path,
    demonstrations: Iterable[Mapping[str, Any]],
    *,
    seed: int = 0,
    num_demonstrations: int = 3000,
    vocab_size: int = 512,
    hidden: int = 128,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    ff: int = 384,
    max_tokens: int = 2048,
    experts: int | None = None,
    top_k: int = 2,
    init: float = 0.05,
    image_tokens: int | None = None,
) -> None:
    """Writes a model, its tokenizer and its chat template into ``folder``.

    - The tokenizer is byte-level BPE trained on demonstrations.
    - The model is ``Qwen3ForCausalLM``, ``Qwen3MoeForCausalLM`` or
      ``Qwen3VLForConditionalGeneration`` in fp32 with tied embeddings.

    Args:
        folder: created if missing.
        demonstrations: ``{"messages": [...]}`` each, at least ``num_demonstrations`` of them.
        seed: of the weights.
        num_demonstrations: the number that the tokenizer is trained on.
        vocab_size: bytes, markers and merges together.
        hidden, layers, heads, kv_heads, head_dim, ff: the model's widths.
        max_tokens: longest sequence.
        experts: of each layer, which makes it a Qwen3-MoE; None has an MLP. Those of a token are as
            wide as the MLP together.
        top_k: experts of a token.
        init: standard deviation of the weights; the usual 0.02 learns far more slowly at this
            width.
        image_tokens: the most tokens of an image, of 8 by 8 pixels each, to which larger ones are
            reduced. They make it a Qwen3-VL; None reads text alone.

    Raises:
        DataError: there are fewer demonstrations.
    """
    import torch
    from transformers import (
        GenerationConfig,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        Qwen3VLForConditionalGeneration,
    )

    from agentrl.engines.torch.model.quiet import quiet_transformers

    if experts is not None and image_tokens is not None:
        raise DataError(
            f"experts={experts} and image_tokens={image_tokens} exclude one another"
        )
    markers = SPECIAL if image_tokens is None else (*SPECIAL, *IMAGES)
    tokenizer = _tokenizer(demonstrations, num_demonstrations, vocab_size, markers)
    pad = tokenizer.pad_token_id
    end = tokenizer.eos_token_id
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ff,
        "max_position_embeddings": max_tokens,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "initializer_range": init,
        "pad_token_id": pad,
        "eos_token_id": end,
        "bos_token_id": None,
        "dtype": "float32",
    }
    kind: Any = Qwen3ForCausalLM
    config: Any = Qwen3Config(**sizes)
    if experts is not None:
        kind = Qwen3MoeForCausalLM
        config = Qwen3MoeConfig(
            **sizes,
            num_experts=experts,
            num_experts_per_tok=top_k,
            moe_intermediate_size=ff // top_k,
            norm_topk_prob=True,
        )
    elif image_tokens is not None:
        kind = Qwen3VLForConditionalGeneration
        config = _seeing(sizes, tokenizer, image_tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "tiny_model") % 2**63)
        model = kind(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if image_tokens is not None:
        _write_processor(Path(folder), image_tokens)


def _seeing(sizes: Mapping[str, Any], tokenizer: Any, image_tokens: int) -> Any:
    """The configuration of a Qwen3-VL, with a tower of two layers as wide as the others."""
    from transformers import Qwen3VLConfig

    # of the frequencies of a head, those of time, height and width
    half = sizes["head_dim"] // 2
    section = [half - 2 * (half // 3), half // 3, half // 3]
    hidden = sizes["hidden_size"]
    ids = tokenizer.get_added_vocab()
    return Qwen3VLConfig(
        text_config={
            **sizes,
            "rope_parameters": {**sizes["rope_parameters"], "mrope_section": section},
        },
        vision_config={
            "depth": 2,
            "hidden_size": hidden,
            "intermediate_size": sizes["intermediate_size"],
            "num_heads": sizes["num_attention_heads"],
            "out_hidden_size": hidden,
            "patch_size": _PATCH,
            "spatial_merge_size": _MERGE,
            "num_position_embeddings": math.ceil(math.sqrt(image_tokens) * _MERGE) ** 2,
            "deepstack_visual_indexes": [0],
            "initializer_range": sizes["initializer_range"],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
        dtype="float32",
    )


def _write_processor(folder: Path, image_tokens: int) -> None:
    token = (_PATCH * _MERGE) ** 2
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": _PATCH,
        "temporal_patch_size": 2,
        "merge_size": _MERGE,
        "min_pixels": token,
        "max_pixels": image_tokens * token,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _tokenizer(
    demonstrations: Iterable[Mapping[str, Any]],
    num_demonstrations: int,
    vocab_size: int,
    special: tuple[str, ...],
) -> Any:
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    rows = list(islice(demonstrations, num_demonstrations))
    if len(rows) < num_demonstrations:
        raise DataError(
            f"the tokenizer needs {num_demonstrations} demonstrations, got {len(rows)}; give more"
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKERS),
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_ordinary_text(rows), trainer)
    backend.add_tokens(
        [AddedToken(marker, special=False, normalized=False) for marker in MARKERS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML_TEMPLATE,
    )


def _ordinary_text(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The text between the markers, so that no merge learns a marker's letters."""
    markers = re.compile("|".join(map(re.escape, (*SPECIAL, *IMAGES, *MARKERS))))
    for row in rows:
        text = "".join(
            piece.text for piece in chatml_pieces(row["messages"], (), ChatMLStyle())
        )
        yield from filter(None, markers.split(text))
