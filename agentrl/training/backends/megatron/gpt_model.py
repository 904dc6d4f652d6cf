"""GPT model: a stage of Megatron's GPTModel over packed rows, whose layers attend by our own
functions and whose last stage scores chosen tokens alone.

Shapes: T packed tokens, H query heads, K key heads of this rank, D head width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
)
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl.engines.torch.model.families import ATTENTION_OF, FAMILIES, head_width
from agentrl.training.data.kernel_attention import attention_arguments
from agentrl.training.data.packing import Packed
from agentrl.training.models.mixture import Mixture
from agentrl.training.models.policy_model import PolicyModel, Tokens
from agentrl.training.parallel.process_group import SHARED, DistSpec
from agentrl.training.parallel.shards import local


@dataclass
class PackedRow(PackedSeqParams):  # type: ignore[misc]
    """A row's samples for Megatron, and what our attention needs of them.

    Args:
        attention: keyword arguments of the attention function.
    """

    attention: Mapping[str, Any] = field(default_factory=dict)


class RowAttention(nn.Module):
    """Attention of a packed row by a function of transformers' interface, in the place of
    Megatron's ``DotProductAttention``, which takes no packed rows.

    Args:
        config: Megatron's.
        attention: the function's name.
        built: what Megatron tells every attention of the layer; causal attention needs none of it.
    """

    is_causal = True

    def __init__(self, config: TransformerConfig, *, attention: str, **built: Any) -> None:
        super().__init__()
        self.config = config
        self._attend = ALL_ATTENTION_FUNCTIONS[attention]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: PackedRow,
        **given: Any,
    ) -> Tensor:
        """``[T, H * D]`` of ``[T, H, D]`` queries and ``[T, K, D]`` keys and values."""
        turned = (one.transpose(0, 1)[None] for one in (query, key, value))
        scaling = query.shape[-1] ** -0.5
        found, _ = self._attend(
            self, *turned, attention_mask, scaling=scaling, **packed_seq_params.attention
        )
        joined: Tensor = found[0].flatten(1)
        return joined


class StageMixture(nn.Module):
    """The policy's own mixture of experts, in the place of Megatron's MLP. Tensor-parallel ranks,
    which all have a row, take a slice of it and a part of the experts each.

    Args:
        mixture: on ``meta``, divided; it gets memory of its own.
        dtype: of the parameters.
    """

    def __init__(self, mixture: Mixture, dtype: torch.dtype) -> None:
        super().__init__()
        for module in mixture.modules():
            for name, form in list(module.named_parameters(recurse=False)):
                own = torch.empty(local(form).shape, dtype=dtype)
                module.register_parameter(name, nn.Parameter(own))
        self.mixture = mixture

    def forward(self, hidden: Tensor, **given: Any) -> tuple[Tensor, None]:
        """``[T, 1, D]`` of ``[T, 1, D]``, and no bias."""
        return self.mixture(hidden), None


class PackedGPT(GPTModel):  # type: ignore[misc]
    """A stage: hidden states of a row, or behind the last layer what the policy says of tokens.

    Args:
        policy: the model that the folder describes, without weights: its configuration, its
            rotary frequencies and, for the last stage, what is computed of the output layer.
        config: Megatron's.
    """

    def __init__(self, policy: PolicyModel, config: TransformerConfig) -> None:
        own = policy.config
        is_tied = not policy.output_modules()
        trunk: Any = policy.hf.base_model
        size = config.num_layers // config.pipeline_model_parallel_size
        first = parallel_state.get_pipeline_model_parallel_rank() * size
        mlps = [layer.mlp for layer in trunk.layers[first : first + size]]
        super().__init__(
            config,
            _layer_blocks(config, policy.attention, mlps),
            own.vocab_size,
            own.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=is_tied,
            position_embedding_type="rope",
        )
        for layer, mlp in zip(self.decoder.layers, mlps, strict=True):
            if isinstance(mlp, Mixture):
                layer.mlp = StageMixture(mlp, config.params_dtype)
        # The family's own frequencies, whatever scales them.
        self.rotary_pos_emb.inv_freq = trunk.rotary_emb.inv_freq.clone()
        self._attention = policy.attention
        self._padding: int | None = trunk.embed_tokens.padding_idx
        # In a tuple, since the stage's own parameters are all that its tree shall hold.
        self._scorer = (policy.scorer,)
        if self.post_process:
            shared = self.shared_embedding_or_output_weight
            weight = shared() if is_tied else self.output_layer.weight
            policy.head.register_parameter("weight", weight)

    def forward(self, packed: Packed) -> Any:
        """Hidden states ``[T, 1, D]`` for the next stage; of the last one logprobs and entropies,
        as ``PolicyModel.forward``."""
        row = _row_of(packed, self._attention)
        embedded, rotary, *_ = self._preprocess(
            packed.token_ids[None], packed.positions, packed_seq_params=row
        )
        if self.pre_process and self._padding is not None:
            # As transformers has it: where padding is an input, its embedding learns nothing.
            is_padding = packed.token_ids == self._padding
            embedded = torch.where(is_padding[:, None, None], embedded.detach(), embedded)
        hidden = self.decoder(
            hidden_states=embedded,
            attention_mask=None,
            rotary_pos_emb=rotary,
            packed_seq_params=row,
        )
        if not self.post_process:
            return hidden
        chosen = hidden[:, 0].index_select(0, packed.logit_rows)
        tokens = Tokens(
            packed.temperature, packed.logit_of, packed.targets, packed.host_logit_of
        )
        return self._scorer[0](chosen, tokens)


def join_stages(place: DistSpec) -> None:
    """Makes Megatron's process groups of a layout, once for all roles of a process."""
    layout = (place.tp, place.pp)
    if SHARED.get("megatron") == layout:
        return
    if parallel_state.model_parallel_is_initialized():
        # Those of a group that this process has left, or of another layout.
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        place.tp, place.pp, order="tp-cp-ep-pp-dp", create_gloo_process_groups=False
    )
    SHARED["megatron"] = layout


def megatron_config(
    own: Any, place: DistSpec, dtype: torch.dtype, *, qkv_bias: bool, recompute: bool
) -> TransformerConfig:
    """Megatron's configuration of a transformers one: nothing is drawn, fused or averaged."""
    recomputed = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    return TransformerConfig(
        num_layers=own.num_hidden_layers,
        hidden_size=own.hidden_size,
        num_attention_heads=own.num_attention_heads,
        num_query_groups=own.num_key_value_heads,
        kv_channels=head_width(own),
        ffn_hidden_size=own.intermediate_size,
        normalization="RMSNorm",
        layernorm_epsilon=own.rms_norm_eps,
        activation_func=silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=qkv_bias,
        qk_layernorm=FAMILIES[ATTENTION_OF.get(own.model_type, own.model_type)].qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=place.tp,
        pipeline_model_parallel_size=place.pp,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # Rows of a step differ in length, and stages tell each other how long one is.
        variable_seq_lengths=True,
        # The default, of mixtures, refuses that for dense models too.
        moe_token_dispatcher_type="alltoall",
        # Megatron then scales gradients by nothing; losses have their weights already.
        calculate_per_token_loss=True,
        # Weights come from the folder.
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        **(recomputed if recompute else {}),
    )


def _layer_blocks(
    config: TransformerConfig, attention: str, mlps: Sequence[nn.Module]
) -> TransformerBlockSubmodules:
    """This stage's layers, of Megatron's own modules without Transformer Engine; of ``mlps``
    mixtures are put in afterwards."""
    norm = WrappedTorchNorm
    heads = {"q_layernorm": norm, "k_layernorm": norm} if config.qk_layernorm else {}
    dense = ModuleSpec(
        module=MLP,
        submodules=MLPSubmodules(
            linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear
        ),
    )
    layers = [
        ModuleSpec(
            module=TransformerLayer,
            submodules=TransformerLayerSubmodules(
                input_layernorm=norm,
                self_attention=ModuleSpec(
                    module=SelfAttention,
                    params={"attn_mask_type": AttnMaskType.causal},
                    submodules=SelfAttentionSubmodules(
                        linear_qkv=ColumnParallelLinear,
                        core_attention=ModuleSpec(
                            module=RowAttention, params={"attention": attention}
                        ),
                        linear_proj=RowParallelLinear,
                        **heads,
                    ),
                ),
                self_attn_bda=get_bias_dropout_add,
                pre_mlp_layernorm=norm,
                mlp=IdentityOp if isinstance(mlp, Mixture) else dense,
                mlp_bda=get_bias_dropout_add,
            ),
        )
        for mlp in mlps
    ]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=norm)


def _row_of(packed: Packed, attention: str) -> PackedRow:
    device = packed.token_ids.device
    sizes = [span.size for span in packed.spans]
    ends = (
        torch.tensor([0, *sizes], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    )
    longest = max(sizes)
    return PackedRow(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        attention=attention_arguments(attention, packed.spans, device),
    )
