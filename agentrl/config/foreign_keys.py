"""Foreign keys: settings of verl and TRL, and what each is called here.

The pages for their users (docs/coming-from-verl.md, docs/coming-from-trl.md) have the same names,
with values; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentrl.config.document import dotted
from agentrl.types.section import Fault

VERL: Mapping[str, str] = dict(
    line.split()
    for line in """
data.train_files data.train
data.custom_cls.path data.custom.path
data.val_files eval.sets
data.train_batch_size train.batch_prompts
data.max_prompt_length data.max_prompt_tokens
data.max_response_length rollout.max_response_tokens
data.seed run.seed
actor_rollout_ref.model.path model.path
actor_rollout_ref.model.lora_rank model.lora.rank
actor_rollout_ref.model.lora_alpha model.lora.alpha
actor_rollout_ref.model.target_modules model.lora.targets
actor_rollout_ref.model.enable_gradient_checkpointing train.gradient_checkpointing
actor_rollout_ref.actor.optim.lr optim.lr
actor_rollout_ref.actor.optim.weight_decay optim.weight_decay
actor_rollout_ref.actor.optim.lr_warmup_steps optim.warmup_steps
actor_rollout_ref.actor.grad_clip optim.clip_grad_norm
actor_rollout_ref.actor.optim.betas optim.betas
actor_rollout_ref.actor.ppo_mini_batch_size train.mini_batch_prompts
actor_rollout_ref.actor.ppo_epochs train.updates_per_batch
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu train.micro_batch_tokens
actor_rollout_ref.actor.ppo_max_token_len_per_gpu train.micro_batch_tokens
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu train.logprob_micro_batch_tokens
actor_rollout_ref.actor.clip_ratio_low algorithm.clip_low
actor_rollout_ref.actor.clip_ratio_high algorithm.clip_high
actor_rollout_ref.actor.clip_ratio_c algorithm.clip_dual
actor_rollout_ref.actor.use_kl_loss algorithm.kl_coef
actor_rollout_ref.actor.kl_loss_coef algorithm.kl_coef
actor_rollout_ref.actor.kl_loss_type algorithm.kl_cap
actor_rollout_ref.actor.loss_agg_mode algorithm.reduction
algorithm.adv_estimator algorithm.name
actor_rollout_ref.actor.policy_loss.loss_mode algorithm.name
actor_rollout_ref.actor.entropy_coeff algorithm.entropy_coef
algorithm.rollout_correction.rollout_is algorithm.rollout_correction.level
algorithm.rollout_correction.rollout_is_threshold algorithm.rollout_correction.cap
algorithm.rollout_correction.rollout_rs algorithm.rollout_correction.reject
algorithm.rollout_correction.rollout_rs_threshold algorithm.rollout_correction.reject_above
algorithm.norm_adv_by_std_in_grpo algorithm.scale_rewards
algorithm.filter_groups.enable algorithm.filter_zero_variance
actor_rollout_ref.rollout.name rollout.engine
actor_rollout_ref.rollout.n rollout.group_size
actor_rollout_ref.rollout.temperature rollout.temperature
actor_rollout_ref.rollout.max_model_len rollout.context_tokens
actor_rollout_ref.rollout.tensor_model_parallel_size rollout.sglang.tp_size
actor_rollout_ref.rollout.gpu_memory_utilization rollout.sglang.kv_memory_fraction
actor_rollout_ref.rollout.free_cache_engine rollout.sleep
actor_rollout_ref.rollout.max_num_seqs rollout.max_running
actor_rollout_ref.rollout.multi_turn.max_assistant_turns rollout.max_turns
actor_rollout_ref.rollout.multi_turn.tool_config_path env.tools
actor_rollout_ref.rollout.multi_turn.format model.tool_parser
actor_rollout_ref.rollout.val_kwargs.n eval.samples
actor_rollout_ref.rollout.val_kwargs.temperature eval.temperature
actor_rollout_ref.rollout.val_kwargs.top_p eval.top_p
custom_reward_function.path reward.custom.path
custom_reward_function.name reward.custom.name
reward_model.model.path reward.model.path
trainer.nnodes placement.nodes
trainer.n_gpus_per_node placement.gpus
actor_rollout_ref.actor.ulysses_sequence_parallel_size placement.sp_size
actor_rollout_ref.actor.megatron.expert_model_parallel_size train.ep_size
trainer.total_epochs train.epochs
trainer.val_before_train eval.before
trainer.test_freq eval.every
trainer.save_freq checkpoint.every
trainer.max_actor_ckpt_to_keep checkpoint.keep_last
trainer.default_local_dir run.dir
trainer.logger metrics.tensorboard
trainer.project_name metrics.wandb.project
trainer.total_training_steps train.steps
""".strip().splitlines()
)

TRL: Mapping[str, str] = dict(
    line.split()
    for line in """
model model.path
train_dataset data.train
eval_dataset eval.sets
reward_funcs reward.functions
reward_weights reward.functions
tools env.tools
max_tool_calling_iterations rollout.max_turns
num_generations rollout.group_size
num_generations_eval eval.samples
max_completion_length rollout.max_response_tokens
vllm_max_model_length rollout.context_tokens
vllm_enable_sleep_mode rollout.sleep
per_device_train_batch_size train.micro_batch_tokens
gradient_accumulation_steps train.mini_batch_prompts
generation_batch_size train.batch_prompts
steps_per_generation train.batch_prompts
num_iterations train.updates_per_batch
shuffle_dataset data.shuffle
temperature rollout.temperature
top_p rollout.top_p
top_k rollout.top_k
beta algorithm.kl_coef
use_bias_correction_kl algorithm.kl_weighted
delta algorithm.clip_dual
epsilon algorithm.clip_low
epsilon_high algorithm.clip_high
scale_rewards algorithm.scale_rewards
loss_type algorithm.reduction
vllm_importance_sampling_correction algorithm.rollout_correction.level
vllm_importance_sampling_clip_max algorithm.rollout_correction.cap
learning_rate optim.lr
adam_beta1 optim.betas
adam_beta2 optim.betas
adam_epsilon optim.eps
weight_decay optim.weight_decay
max_grad_norm optim.clip_grad_norm
lr_scheduler_type optim.schedule
warmup_steps optim.warmup_steps
num_train_epochs train.epochs
bf16 model.dtype
gradient_checkpointing train.gradient_checkpointing
lora_r model.lora.rank
lora_alpha model.lora.alpha
lora_target_modules model.lora.targets
seed run.seed
output_dir run.dir
eval_steps eval.every
eval_on_start eval.before
save_steps checkpoint.every
save_total_limit checkpoint.keep_last
report_to metrics.tensorboard
use_vllm rollout.engine
max_steps train.steps
""".strip().splitlines()
)


def with_our_name(fault: Fault) -> Fault:
    """The fault of an unknown key, in words that say what a key of verl or TRL is called here; of a
    mapping also those below it.
    """
    key = dotted(fault.keys[0])
    leaf = key.rpartition(".")[2]
    if not fault.message.startswith("unknown key"):
        return fault
    if known := [
        f"{one} is {VERL[one]}" for one in _leaves(key, fault.value) if one in VERL
    ]:
        theirs = f"verl's {', '.join(known)} here (docs/coming-from-verl.md)"
    elif leaf in TRL:
        theirs = f"TRL's {leaf} is {TRL[leaf]} here (docs/coming-from-trl.md)"
    else:
        return fault
    return replace(fault, message=f"unknown key {{key}}; {theirs}")


def _leaves(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield key
        return
    for name, inner in value.items():
        yield from _leaves(f"{key}.{name}", inner)
