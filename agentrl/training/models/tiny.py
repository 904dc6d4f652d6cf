"""Tiny model: builds a random Qwen3 or Qwen3-MoE and its tokenizer as a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.render import CHATML_TEMPLATE, ChatMLStyle, chatml_pieces
from agentrl.types import seed_for

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
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
) -> None:
    """Writes a model, its tokenizer and its chat template into ``folder``.

    - The tokenizer is byte-level BPE trained on demonstrations.
    - The model is ``Qwen3ForCausalLM`` or ``Qwen3MoeForCausalLM`` in fp32 with tied embeddings.

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

    Raises:
        DataError: there are fewer demonstrations.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config, Qwen3MoeConfig

    from agentrl.engines.torch.model.quiet import quiet_transformers

    tokenizer = _tokenizer(demonstrations, num_demonstrations, vocab_size)
    pad = tokenizer.pad_token_id
    end = tokenizer.eos_token_id
    routed: dict[str, Any] = {}
    if experts is not None:
        routed = {
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            "moe_intermediate_size": ff // top_k,
            "norm_topk_prob": True,
        }
    config = (Qwen3MoeConfig if routed else Qwen3Config)(
        **routed,
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=ff,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        initializer_range=init,
        pad_token_id=pad,
        eos_token_id=end,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "tiny_model") % 2**63)
        model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(
    demonstrations: Iterable[Mapping[str, Any]], num_demonstrations: int, vocab_size: int
) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
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
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_ordinary_text(rows), trainer)
    backend.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML_TEMPLATE,
    )


def _ordinary_text(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The text between the markers, so that no merge learns a marker's letters."""
    markers = re.compile("|".join(map(re.escape, (*SPECIAL, *MARKERS))))
    for row in rows:
        text = "".join(piece.text for piece in chatml_pieces(row["messages"], (), ChatMLStyle()))
        yield from filter(None, markers.split(text))
