"""Metric names: the table of every name that is logged.

``{...}`` stands for a data set, a reward part, a tool, a phase and so on. Seconds end in ``_s``,
shares of one in ``_frac``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

REWARD_MODEL_PART = "reward_model"
"""The part of a reward that is a reward model's score."""

NAMES: Mapping[str, str] = MappingProxyType(
    {
        # finished trajectories of the step: of its batch, and of the groups beside it that no batch
        # has; failed and cancelled ones enter none of these
        "reward/mean": "mean reward",
        "reward/std": "standard deviation of the reward",
        "reward/{data_source}/mean": "mean reward by data set",
        "reward/{data_source}/std": "standard deviation of the reward by data set",
        "reward_part/{part}/mean": "mean of one part of the rubric",
        "reward_agent/{agent}/mean": "mean reward of one agent of several, where it acted",
        "accuracy/mean": "mean of the rubric's part `correct`; where there is none, of `acc` in a "
        "part's reason, as verl's `compute_score` gives; else the share of rewards above 0",
        "accuracy/{data_source}/mean": "accuracy by data set",
        "group/baseline_reward": "mean reward of the groups' greedy rollouts (algorithm remax)",
        "group/no_signal_frac": "share of groups that teach nothing: no token has an advantage, or "
        "is read by an auxiliary loss",
        "group/zero_std_frac": "share of groups whose rewards are all equal, which teach nothing "
        "by comparison",
        "answer/question_mi": "mutual information of answers and questions in nats a token, from "
        "single tokens; near 0 where answers do not depend on their questions",
        "length/response/mean": "policy tokens a trajectory",
        "length/response/max": "policy tokens of the longest",
        "length/after_prompt/mean": "tokens a trajectory after the prompt of a sequence, "
        "observations included",
        "length/after_prompt/max": "such tokens of the longest",
        "length/total/mean": "all tokens a trajectory, prompts and observations included",
        "length/truncated_frac": "share of trajectories that were cut",
        "turns/mean": "turns a trajectory",
        "turns/max": "turns of the longest",
        "turns/restarts": "new sequences a trajectory after the first, such as after a template "
        "rewrites history",
        "turns/restarts/{cause}": "those of one cause: `template`, `rewrite`, `compaction`, "
        "`sub_agent`, `edited` (docs/rollouts.md)",
        "turns/repairs/{kind}": "turns a trajectory whose request differed in this way from what "
        "was said, and yet extended it (docs/policy-server.md)",
        "tool/calls_per_traj": "calls a trajectory, unreadable ones included",
        "tool/success_frac": "share of calls that succeeded, of those whose result is known",
        "tool/error/{kind}_frac": "share of calls that failed in this way",
        "tool/{tool}/calls": "calls of one tool",
        "tool/{tool}/error_frac": "share of one tool's calls that failed",
        "tool/{tool}/error/{kind}_frac": "share of one tool's calls that failed in this way",
        "tool/{tool}/latency_s/p50": "median seconds of one tool's calls",
        "tool/{tool}/latency_s/p95": "95th percentile of the seconds of one tool's calls",
        "tool/{tool}/queued_s/p50": "median seconds that one tool's calls waited for their turn",
        "tool/{tool}/queued_s/p95": "95th percentile of these seconds",
        "tool/{tool}/output_bytes/mean": "bytes of one tool's answers, as the model is shown them",
        "tool/{tool}/retries_per_call": "further attempts a call of one tool, after failures of "
        "ours",
        # what ended while another batch was trained (rollout.schedule one_step_off and async)
        "ended/reward/mean": "mean reward of the groups that ended since the batch before",
        "ended/accuracy/mean": "their accuracy",
        "ended/turns/mean": "their turns a trajectory",
        "ended/count/groups": "how many they are",
        # what happened to the step's trajectories
        "count/trajectories": "all trajectories of the step's groups",
        "count/effective": "those that finished, and so enter the statistics",
        "count/with_signal": "those that finished in a group whose rewards differ",
        "count/groups": "groups",
        "count/trained_tokens": "tokens that the policy learned from; 0 while a critic warms up",
        "count/trained_trajectories": "trajectories of the batch",
        "excluded_frac": "share of trajectories that failed or were cancelled",
        "failed_frac": "share of trajectories that failed",
        "failed/{boundary}": "trajectories that failed at this boundary",
        "cancelled/{reason}": "trajectories that were cancelled for this reason",
        "sandbox/running": "most sandboxes that one process lent at the end of a group",
        "sandbox/starting": "most sandboxes that one process was starting at the end of a group",
        "sandbox/waiting": "most episodes that waited for a sandbox of one process at the end of a "
        "group",
        "sandbox/failed": "sandboxes that did not start, since the process began",
        # training
        "policy/entropy": "mean entropy of the policy in nats",
        "policy/loss": "the policy's loss",
        "policy/loss_last_pass": "that of the last pass over the batch, where there are several",
        "policy/pg_loss": "the loss without its terms, where it has any",
        "policy/kl_loss": "the KL term of the loss before its coefficient, weighted as the loss "
        "is, in nats",
        "policy/entropy_loss": "the entropy before its coefficient, weighted as the loss is, in "
        "nats",
        "policy/observation_nll": "mean negative logprob of what tools and environments answered, "
        "in nats (algorithm echo)",
        "policy/positive_nll": "mean negative logprob of the policy's tokens in trajectories that "
        "were right, in nats (algorithm vapo)",
        "policy/kl_ref": "KL divergence from the reference in nats, mean over tokens, by "
        "algorithm.kl_estimator; that of a KL in the reward, k1, may be negative",
        "policy/kl_coef": "the step's weight of the KL to the reference, where algorithm.kl_target "
        "adapts it",
        "policy/kl_old": "KL divergence from the policy before the step in nats, estimator k3",
        "policy/kl_old_k1": "the same by estimator k1, a token's difference held to 20 nats; it "
        "may be negative",
        "policy/ratio": "mean probability ratio of the current policy to the old one",
        "policy/clip_frac_low": "share of tokens clipped from below",
        "policy/clip_frac_high": "share of tokens clipped from above",
        "policy/clip_frac_dual": "share of tokens whose cost algorithm.clip_dual bounded",
        "policy/nll": "mean negative logprob of the demonstrations' tokens in nats",
        "moe/load_max/{layers}": "tokens of the expert with most in one of these mixtures of "
        "experts, as a multiple of even loads; mixtures count from 0",
        "moe/dead_experts/{layers}": "experts of these mixtures that no token of the update chose",
        "moe/router_entropy/{layers}": "mean entropy of the routers over all experts in nats",
        "critic/loss": "the critic's loss",
        "critic/value": "mean value of a trained token's state, by the current critic",
        "critic/return": "mean of what it should be",
        "critic/return_sq": "mean square of that",
        "critic/error": "mean of return less value before the batch's first update",
        "critic/error_sq": "mean square of that",
        "critic/explained_variance": "share of the returns' variance that the critic foretold "
        "before the batch's first update",
        "critic/clip_frac": "share of tokens whose value algorithm.value_clip bounded",
        "critic/moe/{kind}/{layers}": "the same of a critic with experts",
        "critic/optim/grad_norm": "norm of the critic's gradient before clipping",
        "critic/optim/lr": "the critic's learning rate",
        "critic/optim/skipped": "1 where a mini-batch had no trained token and took no step",
        "reward_model/loss": "a reward model's loss by pair",
        "reward_model/accuracy": "share of pairs whose better trajectory has the higher score; a "
        "tie counts half",
        "reward_model/margin": "mean score of the better trajectories less that of the others",
        "reward_model/score": "mean score of both",
        "moe/unrecorded_frac": "share of the batch's tokens that no sampler told the experts of, "
        "and that route themselves (train.router_replay)",
        "mismatch/logp_abs/mean": "mean difference of the sampler's and the trainer's logprobs in "
        "nats",
        "mismatch/logp_abs/max": "largest difference of the sampler's and the trainer's logprobs "
        "in nats",
        "mismatch/k3_kl": "KL divergence of the trainer from the sampler, estimator k3",
        "mismatch/engine/logp_abs": "mean difference of the logprobs of tokens of the very version "
        "that is trained: what the engine computes otherwise, in nats",
        "mismatch/engine/k3_kl": "KL divergence, estimator k3, on the same tokens",
        "mismatch/stale/logp_abs": "mean difference of the logprobs of tokens of older versions: "
        "what the weights' age adds to that of the engine, in nats",
        "mismatch/stale/k3_kl": "KL divergence, estimator k3, on the same tokens",
        "mismatch/weight": "mean factor of the off-policy correction",
        "mismatch/weight_sq": "mean square of that factor",
        "mismatch/ess": "share of the trained tokens that the correction's factors are worth: "
        "weight² / weight_sq",
        "mismatch/truncated_frac": "share of tokens whose weight was moved to a bound, or masked "
        "for it",
        "mismatch/rejected_frac": "share of tokens that algorithm.rollout_correction.reject left "
        "out",
        "mismatch/retok_frac": "share of a trajectory's sampled tokens that are not those of their "
        "own text",
        "mismatch/template_frac": "share of the last turn's context that a new rendering of the "
        "template changes",
        "mismatch/unknown_frac": "share of a trajectory's sampled tokens that the tokenizer has no "
        "text for, such as ids of a padded vocabulary",
        "async/staleness/mean": "mean staleness of trained tokens in versions",
        "async/staleness/max": "largest staleness of a trained token in versions",
        "count/stragglers": "episodes cancelled because enough rollouts of their group had "
        "finished (rollout.oversample_per_group)",
        "count/resumed_episodes": "episodes that ran during a checkpoint and continued from it "
        "after a resume",
        "count/restarted_episodes": "episodes whose state could not be saved then, and that "
        "restarted",
        "count/failed_checkpoints": "checkpoints, or copies of them elsewhere, that could not be "
        "written",
        "count/lost_workers": "rollout workers that died and were started again",
        "count/drained_workers": "rollout workers that left a node which Ray drains",
        "count/lost_nodes": "nodes that did not answer, and were lost with their workers",
        "count/returned_nodes": "lost nodes that answered again",
        "count/replayed_groups": "groups of lost or drained workers, which others played",
        "count/worker_killers": "groups that were dropped since each worker that played them died",
        "count/suspect_workers": "rollout workers that were late to answer",
        "count/starting_workers": "rollout workers that were started in the place of a lost one",
        "count/waiting_workers": "of them, those for which no machine had room",
        "count/stale_workers": "rollout workers that came back, and had to be sent the weights",
        "count/serving_workers": "of them, those that serve the weights published last",
        "count/lost_servers": "servers of the engines that died or did not answer",
        "time/server_away_s": "seconds until those served again that came back in the step",
        "async/issued": "groups issued since the step before; with rollout.schedule one_step_off "
        "and async",
        "async/dropped": "groups lost for their age: dropped once they had finished, or cancelled "
        "(rollout.on_stale)",
        "async/mixed_frac": "share of trained trajectories whose tokens are of more than one "
        "version",
        "async/masked_tokens": "tokens left out of the loss as too stale "
        "(rollout.on_stale=mask_tokens)",
        "optim/grad_norm": "norm of the gradient before clipping",
        "optim/lr": "learning rate",
        "optim/skipped": "1 where a mini-batch had no trained token and took no step",
        "optim/not_finite": "optimizer steps that were skipped, since the gradient was not finite",
        # speed
        "gpu/allocated_gib/mean": "GiB of GPU memory that a rank keeps after an update",
        "gpu/allocated_gib/max": "the same of the rank with most, of the last stage where "
        "placement.pp_size divides the model",
        "gpu/peak_gib/mean": "most GiB of GPU memory that a rank held during an update",
        "gpu/peak_gib/max": "the same of the rank with most, of the last stage likewise",
        "gpu/{phase}/peak_gib": "most GiB of a rank's GPU that all processes held in a phase, "
        "rollout, update or publish, where engine and trainer have it in turn (rollout.sleep)",
        "gpu/{phase}/others_gib": "the same of other processes than the rank at the phase's end, "
        "such as an engine's server",
        "gpu/mfu": "share of a GPU's peak in bfloat16 that the updates' products reach, 6 FLOPs a "
        "parameter and token; absent where the peak is not known",
        "gpu/utilisation_frac": "share of the second before an update's end in which a kernel ran; "
        "absent without the package nvidia-ml-py",
        "perf/tokens_per_s": "tokens that the step trained on or prepared, by its seconds",
        "perf/rollout_tokens_per_s": "sampled tokens of the training episodes that ended in the "
        "step, by all of its seconds",
        "perf/unscored_groups": "most groups that waited at one time for a reward model's scores",
        "perf/loop_lag_s": "most seconds that the event loop of a host's episodes stood still, by "
        "code that blocks in an async function",
        "perf/abandoned_calls": "most synchronous calls of tools, environments and rewards that "
        "ran on in one process after they were given up, each in a thread of its own",
        "time/step_s": "seconds of the step",
        "time/wait_rollout_s": "seconds that the trainer waited for a batch of the rollouts",
        "time/idle_frac": "share of the step's seconds in which the rollouts waited for the "
        "trainer: no group was in flight, since admission had no room, or a publish paused them",
        "time/idle_frac/{pool}": "the same of each of several pools (placement.pools): that of the "
        "rollout workers, or ranks that had no call",
        "time/{phase}_s": "seconds of one phase; phases may overlap",
        # evaluation
        "eval/{name}/{metric}": "a held-out set's metric, such as sampled or greedy, or a reward "
        "model's accuracy",
    }
)

VERL_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "critic/rewards/mean": ("reward/mean",),
        "response_length/mean": ("length/after_prompt/mean",),
        "response_length/max": ("length/after_prompt/max",),
        "num_turns/mean": ("turns/mean", "turns/mean"),
        "num_turns/max": ("turns/max", "turns/max"),
        "actor/entropy": ("policy/entropy",),
        "actor/pg_loss": ("policy/pg_loss",),
        "actor/kl_loss": ("policy/kl_loss",),
        "actor/ppo_kl": ("policy/kl_old_k1",),
        "actor/pg_clipfrac": ("policy/clip_frac_low", "policy/clip_frac_high"),
        "actor/pg_clipfrac_lower": ("policy/clip_frac_dual",),
        "actor/grad_norm": ("optim/grad_norm",),
        "actor/lr": ("optim/lr",),
        "timing_s/step": ("time/step_s",),
        "timing_s/gen": ("time/wait_rollout_s",),
        "timing_s/update_actor": ("time/update_s",),
    }
)
"""verl's names for dashboards, each as the sum of metrics of ours.

verl counts the prompt and each observation between two turns as turns, so our t turns are its 2t.
"""

_OF_A_POLICY = "policy/kl_old_k1"
"""A metric that only a stage with policy gradients has, as verl's PPO trainer does."""

_PLACE = re.compile(r"\\\{\w+\\\}")
_PATTERNS = tuple(
    (re.compile(_PLACE.sub("[^/]+", re.escape(name))), text) for name, text in NAMES.items()
)


def describe(name: str) -> str | None:
    """The meaning of a logged name; None if the table does not have it."""
    return next((text for pattern, text in _PATTERNS if pattern.fullmatch(name)), None)


def with_verl_names(values: Mapping[str, float]) -> dict[str, float]:
    """``values``, and again under verl's names those that mean the same there.

    ``actor/...`` and its time are given for a policy's updates alone.
    """
    named = dict(values)
    # A loss without further terms is the policy gradient's own.
    known = {"policy/pg_loss": values.get("policy/loss"), **values}
    for name, parts in VERL_NAMES.items():
        if _OF_A_POLICY not in values and "actor" in name:
            continue
        found = [value for part in parts if (value := known.get(part)) is not None]
        if len(found) == len(parts):
            named[name] = sum(found)
    return named
