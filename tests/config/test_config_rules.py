"""Rules between settings: what is broken, why, the value found, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError

Problems = Callable[..., list[str]]
Write = Callable[..., Path]


def test_grpo_refuses_a_group_of_one(problems: Problems) -> None:
    assert problems("rollout: {group_size: 1}\n") == [
        "config.yaml:3:11: algorithm.name='grpo' needs rollout.group_size >= 2 (a trajectory is "
        "compared with its siblings), got 1; raise it, or choose another algorithm"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "cispo",
        "dapo",
        "dppo",
        "dr_grpo",
        "echo",
        "gigpo",
        "gspo",
        "rloo",
        "sapo",
        "turn_grpo",
    ],
)
def test_what_compares_rollouts_refuses_a_group_of_one(
    problems: Problems, name: str
) -> None:
    (line,) = problems(f"rollout: {{group_size: 1}}\nalgorithm: {name}\n")
    assert f"algorithm.name={name!r} needs rollout.group_size >= 2" in line
    assert "got 1; raise it, or choose another algorithm" in line


@pytest.mark.parametrize("name", ["ppo", "vapo", "pf_ppo"])
def test_what_needs_a_critic_says_which_settings_give_one(
    problems: Problems, name: str
) -> None:
    (line,) = problems(f"algorithm: {name}\n")
    assert f"algorithm.name={name!r} needs a critic, got neither critic.stage nor" in line
    assert "critic.stage=model starts it from the model of the run" in line


@pytest.mark.parametrize("lora", [{}, {"rank": 4}])
def test_distillation_needs_a_teacher(lora: dict[str, int]) -> None:
    given = {
        "model": {"path": "m", "lora": lora},
        "data": {"train": "tasks.jsonl"},
        "algorithm": {"name": "distillation"},
        "train": {"steps": 1},
    }
    with pytest.raises(
        ConfigError, match=r"needs a teacher, got neither reference\.stage nor"
    ):
        load_config(given)
    for teacher in ({"path": "better"}, {"stage": "model"}):
        assert load_config({**given, "reference": teacher})


@pytest.mark.parametrize(
    ("settings", "warmup"),
    [("{name: vapo}", 50), ("{name: ppo, critic_warmup_steps: 3}", 3)],
)
def test_a_warm_up_of_the_critic_leaves_steps_for_the_policy(
    problems: Problems, write: Write, settings: str, warmup: int
) -> None:
    text = f"algorithm: {settings}\ncritic: {{stage: model}}\n"
    (line,) = problems(f"{text}train: {{steps: {warmup}}}\n")
    assert (
        f"algorithm.critic_warmup_steps must be less than train.steps={warmup} (the policy learns "
        f"nothing in a critic's warm-up), got {warmup}; lower it, or raise train.steps"
    ) in line
    assert load_config(write(f"{text}train: {{steps: {warmup + 1}}}\n")).train.steps


@pytest.mark.parametrize("name", ["remax", "grpo", "reinforce_plus_plus"])
def test_training_samples_at_a_temperature_above_zero(
    problems: Problems, name: str
) -> None:
    # ReMax plays its greedy baseline beside the group, which is sampled all the same
    (line,) = problems(f"rollout: {{temperature: 0}}\nalgorithm: {name}\n")
    assert "rollout.temperature must be more than 0 for training" in line
    assert "got 0" in line


def test_imitation_needs_no_siblings(write: Write) -> None:
    assert (
        load_config(
            write("algorithm: sft\nrollout: {group_size: 1}\n")
        ).rollout.min_group_size
        == 1
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train: {batch_prompts: 6, mini_batch_prompts: 4}",
         "train.mini_batch_prompts must divide train.batch_prompts=6, got 4; the divisors are 1, "
         "2, 3, 6"),
        ("train: {steps: 1, epochs: "
         "2}", "train.steps and train.epochs exclude each other, got 1 and 2"),
        ("placement: {world_size: "
         "300}", "placement.world_size must be at most the episodes of a mini-batch"),
        ("train: {compile: true, gradient_checkpointing: selective}",
         "train.gradient_checkpointing='selective' chooses single operations, which "
         "train.compile=true fuses"),
        ("train: {backend: plain}\nplacement: {world_size: 2}",
         "train.backend='plain' runs in one process, which needs placement.world_size=1, got 2"),
        ("placement: {world_size: 4, tp_size: 3}",
         "placement.tp_size * placement.sp_size must divide placement.world_size=4, got 3 * 1"),
        ("placement: {world_size: 4, tp_size: 4, sp_size: 2}",
         "placement.tp_size * placement.sp_size must divide placement.world_size=4, got 4 * 2"),
        ("placement: {world_size: 4}\ntrain: {shard: hybrid}",
         "train.shard='hybrid' needs train.shard_size, the data-parallel ranks that share one copy "
         "of the weights, got none"),
        ("placement: {world_size: 8, tp_size: 2}\ntrain: {shard: hybrid, shard_size: 3}",
         "train.shard_size must divide the 4 data-parallel ranks (placement.world_size / "
         "placement.tp_size / placement.sp_size), got 3"),
        ("placement: {world_size: 4}\ntrain: {ep_size: 3}",
         "train.ep_size must divide the ranks that share one copy of the weights "
         "(placement.world_size, under train.shard='hybrid' a group of train.shard_size * "
         "tp_size * sp_size), 4 here, got 3"),
        ("placement: {world_size: 8, tp_size: 2}\n"
         "train: {shard: hybrid, shard_size: 2, ep_size: 8}",
         "train.shard_size * tp_size * sp_size), 4 here, got 8"),
        ("train: {router_aux_loss: -0.1}", "train.router_aux_loss must be at least 0"),
        ("train: {shard_size: 2}", "train.shard_size=2 does nothing with train.shard='full'"),
        ("train: {backend: plain, shard: grad_op}",
         "train.shard='grad_op' does nothing with train.backend='plain'; leave it out, or set "
         "train.backend to 'fsdp2'"),
        ("rollout: {min_group_size: "
         "9}", "rollout.min_group_size must be at most rollout.group_size=8, got 9"),
        ("rollout: {torch: {num_threads: 0}}", "rollout.torch.num_threads must be at least 1"),
        ("rollout: {sglang: {num_threads: 1}}", "unknown key rollout.sglang.num_threads"),
        ("rollout: {top_p: 0.9}", "set rollout.allow_biased_sampling=true to train all the same"),
        ("rollout: {top_k: 5}", "got top_p=1.0, top_k=5"),
        ("rollout: {temperature: 0}", "rollout.temperature must be more than 0 for training"),
        ("rollout: {engine: openai}", "rollout.engine='openai' cannot train"),
        ("rollout: {max_staleness: "
         "1}", "rollout.max_staleness must be 0 with rollout.schedule='sync', got 1"),
        ("algorithm: {rollout_correction: {level: token}}\nrollout: {schedule: async, "
         "max_staleness: 0}",
         "rollout.max_staleness must be at least 1 with rollout.schedule='async'"),
        ("algorithm: {rollout_correction: {level: token}}\nrollout: {schedule: one_step_off, "
         "pause_mode: retract}",
         "rollout.schedule='one_step_off' lets model calls end before a publish"),
        ("rollout: {schedule: async}",
         "rollout.schedule='async' with rollout.max_staleness=1 trains tokens that older weights "
         "sampled, which needs algorithm.rollout_correction.level='token' (truncated importance "
         "weights), got 'auto'; set it, or rollout.schedule=sync"),
        ("algorithm: {rollout_correction: {level: token}}\nrollout: {schedule: async, "
         "oversample: 0.5}",
         "rollout.on_stale='wait' loses no group, so that no more are in flight than "
         "rollout.max_staleness=1 lets be trained in time, and rollout.oversample must be 0, got "
         "0.5; leave it out and raise rollout.max_staleness, or set rollout.on_stale=drop"),
        ("run: {deterministic: true}\nalgorithm: {rollout_correction: {level: token}}\n"
         "rollout: {schedule: async, on_stale: wait}",
         "so that rollout.schedule must be left out, got 'async'; leave it out, or set "
         "run.deterministic=false"),
        ("algorithm: {old_logprobs: rollout}\nrollout: {schedule: async}",
         "which needs algorithm.old_logprobs='recompute', got 'rollout'"),
        ("run: {deterministic: true}\nrollout: {oversample: "
         "0.5}", "rollout.oversample must be left out, got 0.5"),
        ("rollout: {context_tokens: 1024}", "must be more than data.max_prompt_tokens=1024"),
        ("run: {deterministic: true}\nrollout: {engine: "
         "sglang}", "run.deterministic needs rollout.engine='torch'"),
        ("run: {deterministic: true}\nplacement: {world_size: 2}",
         "run.deterministic needs placement.world_size=1 (several ranks round sums otherwise than "
         "the engine), got 2; set it, or run.deterministic=false"),
        ("run: {deterministic: true}\nplacement: {pools: {aside: {world_size: 2}}, "
         "roles: {reference: aside}}\nalgorithm: {kl_coef: 0.1}",
         "run.deterministic needs placement.pools.aside.world_size=1"),
        ("train: {router_replay: rollout}\nrollout: {engine: sglang, sglang: {device: cpu}}",
         "train.router_replay='rollout' needs an engine that tells the experts of its tokens, "
         "'torch' or 'sglang', got rollout.engine='sglang'; set it, or train.router_replay=off"),
        ("sandbox: {backend: dokcer}", "sandbox.backend='dokcer' does not exist"),
        ("sandbox: {require: [file]}", "did you mean 'files'?"),
        ("sandbox: {backend: unsafe, require: isolated}", "contradicts sandbox.backend='unsafe'"),
        ("sandbox: {limits: {open_files: 3}}", "sandbox.limits.open_files=3 is below the 16"),
        ("sandbox: {backend: landlock, image: "
         "debian}", "sandbox.image='debian' needs a backend with images"),
        ("sandbox: {docker: {host: ssh://there}}", "sandbox.docker.host must begin with unix://"),
        ("sandbox: {persist: all}", "sandbox.persist must be 'files' or 'interpreter', got 'all'"),
        ("sandbox: {backend: docker, max_running: "
         "129}", "more than sandbox.docker.max_sandboxes=128; lower it"),
        ("sandbox: {backend: docker}\nrollout: {max_running: "
         "129}", "more than sandbox.docker.max_sandboxes=128"),
        ("sandbox: {max_lifetime_s: 600}", "must be more than rollout.episode_timeout_s=600"),
        ("sandbox: {max_running: 1}\nplacement: {world_size: "
         "2}", "must be at least 2, one for each process that hosts episodes "
         "(placement.world_size), got 1"),
        ("algorithm: gprpo", "algorithm.name='gprpo' is unknown; did you mean 'grpo'?"),
        ("algorithm: {clip_lo: "
         "0.1}", "unknown key algorithm.clip_lo; did you mean algorithm.clip_low?"),
        ("algorithm: {clip_low: yes}", "algorithm.clip_low must be a number, got 'yes'"),
        ("algorithm: {clip_low: 1.5}", "algorithm.clip_low must be less than 1, got 1.5"),
        ("algorithm: {filter_zero_variance: "
         "no}", "algorithm.filter_zero_variance must be true or false, got 'no'"),
        ("algorithm: {old_logprobs: rollout}\ntrain: {updates_per_batch: 2}",
         "algorithm.old_logprobs='rollout' allows one update a batch"),
        ("algorithm: {old_logprobs: rollout}\ndebug: {train_on_tool_tokens: "
         "true}", "old_logprobs='rollout' needs debug.train_on_tool_tokens=false"),
        ("algorithm: dppo\ndebug: {train_on_tool_tokens: "
         "true}", "algorithm.name='dppo' needs debug.train_on_tool_tokens=false"),
        ("algorithm: {old_logprobs: rollout}\ntrain: {mini_batch_prompts: "
         "8}", "in mini-batches of 8"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_told_whole(problems: Problems, setting: str, words: str) -> None:
    (line,) = problems(setting + "\n")
    assert line.startswith("config.yaml:")
    assert words in line


def test_a_gpus_attention_is_refused_on_a_cpu(problems: Problems) -> None:
    head = "model: {path: m, attention: varlen}\ndata: {train: t.py:f}\n"
    (line,) = problems("placement: {device: cpu}\n", head=head)
    assert "model.attention='varlen' needs a GPU, got placement.device='cpu'; set" in line


def test_deterministic_runs_compute_in_float32(problems: Problems) -> None:
    head = "model: {path: m, dtype: bfloat16}\ndata: {train: t.py:f}\nrun: {deterministic: true}\n"
    (line,) = problems("", head=head)
    assert line.startswith(
        "config.yaml:1:18: run.deterministic needs model.dtype='float32', got 'bfloat16'"
    )


def test_deterministic_runs_may_compute_in_bfloat16_as_the_engine_does(
    problems: Problems, write: Write
) -> None:
    head = (
        "model: {path: m, dtype: bfloat16, head_dtype: float32}\ndata: {train: t.py:f}\n"
        "run: {deterministic: true}\n"
    )
    assert load_config(write("placement: {device: cpu}\n", head=head)).run.deterministic
    (line,) = problems("placement: {device: cuda}\n", head=head)
    assert "run.deterministic needs model.dtype='float32'" in line


def test_truncated_sampling_can_be_allowed(write: Write) -> None:
    config = load_config(write("rollout: {top_p: 0.9, allow_biased_sampling: true}\n"))
    assert config.rollout.top_p == 0.9


def test_an_algorithm_of_ones_own_is_made_and_asked(
    problems: Problems, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\nfrom agentrl.algorithms import make_algorithm\n"
        "def trio(clip=0.2):\n    return replace(make_algorithm('grpo', {'clip_low': clip}), "
        "group_size_min=3)\n"
    )
    (line,) = problems("algorithm: mine.py:trio\nrollout: {group_size: 2}\n")
    assert "algorithm.name='mine.py:trio' needs rollout.group_size >= 3" in line
    (line,) = problems("algorithm: {name: 'mine.py:trio', clop: 1}\n")
    assert "algorithm.clop" in line
    assert "did you mean 'clip'?" in line


OWN_OFF_POLICY = """
from dataclasses import replace
from agentrl.algorithms import make_algorithm

def without():
    return make_algorithm("grpo")

def corrected():
    return make_algorithm("grpo", {"rollout_correction": {"level": "token"}})
"""


@pytest.mark.parametrize("schedule", ["one_step_off", "async"])
def test_an_algorithm_of_ones_own_without_a_correction_is_refused_on_older_weights_tokens(
    problems: Problems, write: Write, tmp_path: Path, schedule: str
) -> None:
    (tmp_path / "own.py").write_text(OWN_OFF_POLICY)
    (line,) = problems(f"algorithm: own.py:without\nrollout: {{schedule: {schedule}}}\n")
    assert "rollout.max_staleness=1 trains tokens that older weights sampled" in line
    assert (
        "algorithm.name='own.py:without' returns an AlgorithmSpec without `correction`"
        in line
    )
    load_config(write("algorithm: own.py:without\nrollout: {schedule: sync}\n"))
    load_config(write(f"algorithm: own.py:corrected\nrollout: {{schedule: {schedule}}}\n"))


def test_defaults_that_follow_other_settings(write: Write) -> None:
    (stage,) = load_config(
        write("train: {batch_prompts: 6, micro_batch_tokens: 99}\n")
    ).resolved_stages()
    assert (stage.train.mini_batch_prompts, stage.train.logprob_micro_batch_tokens) == (
        6,
        99,
    )
    assert stage.context_tokens == 1024 + 4096


def test_passes_over_a_batch_are_the_algorithms_epochs(write: Write) -> None:
    (stage,) = load_config(write("train: {updates_per_batch: 3}\n")).resolved_stages()
    assert stage.make_algorithm().num_epochs == 3


@pytest.mark.parametrize(
    ("metric", "remedy"),
    [
        ("greedy", "name one as eval/SET/greedy"),
        ("eval/greedy", "name one as eval/SET/greedy"),
        ("eval/math/greedy", "the stage's sets are code"),
    ],
)
def test_the_best_checkpoint_is_by_an_evaluation_of_the_stage(
    problems: Problems, write: Write, metric: str, remedy: str
) -> None:
    sets = "eval: {sets: {code: {data: x.py:f}}}\n"
    (line,) = problems(f"checkpoint: {{keep_best: {metric}}}\n{sets}")
    assert f"checkpoint.keep_best must be a metric of an evaluation, got {metric!r}" in line
    assert remedy in line
    load_config(write(f"checkpoint: {{keep_best: eval/code/greedy}}\n{sets}"))
