"""Each built-in record, made without any setting, has its paper's values; a row that differs says
why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms import (
    ALGORITHMS,
    AlgorithmSpec,
    PolicyGradientSettings,
    make_algorithm,
)
from tests.algorithms.made import counts_of, group_of, rewards_of

BY_TASK = "by task"
"""A number that the paper chooses for each experiment."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a paper.

    Args:
        paper: what it says.
        source: where: number, and section or equation.
        ours: what the record has, where that differs.
        why: it differs.
    """

    paper: Any
    source: str
    ours: Any = None
    why: str = ""

    @property
    def wanted(self) -> Any:
        return self.ours if self.why else self.paper


PPO = "arXiv:1707.06347"
GRPO = "arXiv:2402.03300"
DAPO = "arXiv:2503.14476"
DR_GRPO = "arXiv:2503.20783"
RLOO = "arXiv:2402.14740"
REMAX = "arXiv:2310.10505"
REINFORCE_PP = "arXiv:2501.03262"
GSPO = "arXiv:2507.18071"
CISPO = "arXiv:2506.13585"
SAPO = "arXiv:2511.20347"
DPPO = "arXiv:2602.04879"
GIGPO = "arXiv:2505.10978"
PF_PPO = "arXiv:2409.06957"
VAPO = "arXiv:2504.05118"
GKD = "arXiv:2306.13649"
GAE = "arXiv:1506.02438"
INSTRUCT = "arXiv:2203.02155"
BASELINES = "openai/baselines, ppo2: the authors' own code"

NO_REFERENCE = (
    f"no reference is loaded unless asked for; {DAPO}, sec. 2.3, leaves the KL out too"
)
BY_TOKEN = f"by tokens, so that a long response's tokens weigh as much ({DAPO}, sec. 3.3)"
NO_BOUND = "one update a batch never meets the bounds; they hold where there are several"
ABOVE = f"clip-higher ({DAPO}, sec. 3.1)"
SAMPLED = f"dynamic sampling ({DAPO}, sec. 3.2)"
FILTERED = f"{SAMPLED}: equal rewards have no advantage, and dilute a mean"


def grpo_like(source: str, **own: Value) -> dict[str, Value]:
    """What most that compare a group have in common."""
    return {
        "credit": Value("deviations of the mean", f"{GRPO}, sec. 4.1.2"),
        "kl in": Value("the loss", f"{GRPO}, eq. 3"),
        "kl estimator": Value("k3", f"{GRPO}, eq. 4"),
        "kl coefficient": Value(0.0, source),
        "drops equal rewards": Value(False, source, True, FILTERED),
        **own,
    }


def ppo_like(source: str, **own: Value) -> dict[str, Value]:
    return {
        "clip": Value((0.2, 0.2), f"{PPO}, sec. 6.1"),
        "reduction": Value("token_mean", f"{PPO}, eq. 7: the mean over time steps"),
        "credit": Value("rewards", source),
        "normalises advantages": Value(True, BASELINES),
        "kl in": Value("the reward", f"{INSTRUCT}, eq. 2"),
        "kl estimator": Value("k1", f"{INSTRUCT}, eq. 2: the log ratio"),
        "kl coefficient": Value(0.02, f"{INSTRUCT}, app. C.4", 0.0, NO_REFERENCE),
        "discount": Value(
            0.99, f"{PPO}, app. A", 1.0, f"none, as of a response ({INSTRUCT}, app. C.4)"
        ),
        "lam": Value(0.95, f"{PPO}, app. A"),
        "lam_value": Value(None, f"{GAE}: one λ"),
        "length_alpha": Value(None, f"{GAE}: one λ"),
        "value clip": Value(0.2, BASELINES),
        "critic warm-up": Value(0, source),
        "drops equal rewards": Value(False, source),
        **own,
    }


TABLE: Mapping[str, Mapping[str, Value]] = {
    "grpo": grpo_like(
        GRPO,
        clip=Value(
            None, "no number", (0.2, 0.28), f"{PPO}, sec. 6.1, below; above {ABOVE}"
        ),
        reduction=Value("trajectory_mean", f"{GRPO}, eq. 3", "token_mean", BY_TOKEN),
        **{"kl coefficient": Value(0.04, f"{GRPO}, sec. 4.2", 0.0, NO_REFERENCE)},
    ),
    "dr_grpo": grpo_like(
        DR_GRPO,
        clip=Value(None, "no number", (0.2, 0.2), f"{PPO}, sec. 6.1"),
        reduction=Value("constant", f"{DR_GRPO}, sec. 3.2"),
        credit=Value("differences from the mean", f"{DR_GRPO}, sec. 3.2"),
    ),
    "dapo": grpo_like(
        DAPO,
        clip=Value((0.2, 0.28), f"{DAPO}, sec. 4.1"),
        reduction=Value("token_mean", f"{DAPO}, sec. 3.3"),
        **{
            "drops equal rewards": Value(True, f"{DAPO}, sec. 3.2"),
            "overlong": Value(
                (20480, 4096),
                f"{DAPO}, sec. 4.1",
                (None, None),
                "a share of the run's own limit of tokens, which nobody but its user knows",
            ),
            "leaves out truncated": Value(
                True,
                f"{DAPO}, sec. 3.4: overlong filtering, before the shaped reward",
                False,
                "a policy that runs out its limit would never learn that it failed",
            ),
        },
    ),
    "rloo": grpo_like(
        RLOO,
        clip=Value(None, f"{RLOO}: none", (0.2, 0.2), NO_BOUND),
        reduction=Value(
            "trajectory_mean", f"{RLOO}, eq. 8: by response", "token_mean", BY_TOKEN
        ),
        credit=Value("differences from the others", f"{RLOO}, eq. 8"),
        **{
            "kl in": Value(
                "the reward",
                RLOO,
                "the loss",
                "credit is a number of a response on the driver, where no logprob is known",
            ),
            "kl coefficient": Value(BY_TASK, RLOO, 0.0, NO_REFERENCE),
        },
    ),
    "remax": {
        "clip": Value(None, f"{REMAX}: none", (0.2, 0.2), NO_BOUND),
        "reduction": Value("trajectory_mean", REMAX, "token_mean", BY_TOKEN),
        "credit": Value("differences from the greedy rollout", REMAX),
        "normalises advantages": Value(False, REMAX),
        "kl in": Value("the reward", REMAX),
        "kl estimator": Value("k1", f"{REMAX}: the log ratio"),
        "kl coefficient": Value(BY_TASK, REMAX, 0.0, NO_REFERENCE),
        "discount": Value(1.0, REMAX),
        "drops equal rewards": Value(False, REMAX),
    },
    "reinforce_plus_plus": {
        "clip": Value((0.2, 0.2), REINFORCE_PP),
        "reduction": Value("token_mean", REINFORCE_PP),
        "credit": Value("rewards", f"{REINFORCE_PP}, eq. 6"),
        "normalises advantages": Value(True, REINFORCE_PP),
        "kl in": Value("the reward", f"{REINFORCE_PP}, eq. 6"),
        "kl estimator": Value("k1", f"{REINFORCE_PP}, eq. 7: the log ratio"),
        "kl coefficient": Value(BY_TASK, REINFORCE_PP, 0.0, NO_REFERENCE),
        "discount": Value(1.0, f"{REINFORCE_PP}, eq. 8"),
        "drops equal rewards": Value(False, REINFORCE_PP),
    },
    "gspo": grpo_like(
        GSPO,
        clip=Value((3e-4, 4e-4), f"{GSPO}, sec. 5.1"),
        reduction=Value("trajectory_mean", f"{GSPO}, eq. 5"),
    ),
    "cispo": grpo_like(
        CISPO,
        **{
            "ratio bounds": Value(
                BY_TASK, CISPO, (0.0, 5.0), "no lower one; above arXiv:2510.13786"
            )
        },
        reduction=Value("token_mean", f"{CISPO}, eq. 4"),
    ),
    "sapo": grpo_like(
        SAPO,
        temperatures=Value((1.0, 1.05), f"{SAPO}, the experiments' default"),
        reduction=Value("trajectory_mean", f"{SAPO}, its objective"),
    ),
    "dppo": grpo_like(
        DPPO,
        clip=Value((0.15, 0.15), f"{DPPO}, of total variation"),
        reduction=Value("token_mean", DPPO),
    ),
    "gigpo": grpo_like(
        GIGPO,
        clip=Value(
            None, "no number", (0.2, 0.28), f"{PPO}, sec. 6.1, below; above {ABOVE}"
        ),
        reduction=Value("by turn", f"{GIGPO}, its objective", "token_mean", BY_TOKEN),
        credit=Value("differences from the mean", f"{GIGPO}, the factor of 1"),
        **{
            "kl coefficient": Value(0.01, f"{GIGPO}, the experiments", 0.0, NO_REFERENCE),
            "step weight": Value(1.0, f"{GIGPO}, the experiments"),
            "step discount": Value(0.95, f"{GIGPO}, the experiments"),
            "drops equal rewards": Value(False, GIGPO),
        },
    ),
    "ppo": ppo_like(PPO),
    "pf_ppo": ppo_like(PF_PPO, keeps=Value("best_worst", f"{PF_PPO}, one of its filters")),
    "vapo": ppo_like(
        VAPO,
        clip=Value((0.2, 0.28), f"{VAPO}, sec. 4.3: clip-higher"),
        reduction=Value("token_mean", f"{VAPO}, sec. 4.2"),
        lam_value=Value(1.0, f"{VAPO}, sec. 4.1: decoupled"),
        length_alpha=Value(0.05, f"{VAPO}, eq. 9"),
        auxiliary=Value({"positive_nll": 0.1}, f"{VAPO}, sec. 4.3"),
        discount=Value(1.0, f"{VAPO}, sec. 5.1"),
        **{"critic warm-up": Value(50, f"{VAPO}, sec. 5.1")},
    ),
    "distillation": {
        "clip": Value(None, f"{GKD}: none", (0.2, 0.28), NO_BOUND),
        "reduction": Value("trajectory_mean", GKD, "token_mean", BY_TOKEN),
        "credit": Value("nothing", f"{GKD}, sec. 3.1: the teacher's word alone"),
        "drops equal rewards": Value(False, GKD),
    },
    "reward_model": {
        "centring": Value(
            0.01, "arXiv:2312.09244, sec. 2", 0.0, "an addition of another paper"
        ),
    },
}
WITHOUT_PAPER = {"echo", "turn_grpo", "sft"}


def keywords(function: Any) -> Mapping[str, Any]:
    assert isinstance(function, partial)
    return function.keywords


def loss_of(spec: AlgorithmSpec) -> Mapping[str, Any]:
    return keywords(keywords(spec.policy_loss)["loss"])


def credit_of(spec: AlgorithmSpec) -> str:
    """What the credit of a group with the rewards 1, 0, 0, 2 and a greedy one of 0.5 is."""
    given = rewards_of([1.0, 0.0, 0.0, 2.0], [0] * 4, baseline=np.full(4, 0.5))
    found = spec.credit(given, {}).trajectory.round(3).tolist()
    named = {
        "nothing": [0.0, 0.0, 0.0, 0.0],
        "rewards": [1.0, 0.0, 0.0, 2.0],
        "differences from the mean": [0.25, -0.75, -0.75, 1.25],
        # the sample deviation is .957
        "deviations of the mean": [0.261, -0.783, -0.783, 1.305],
        "differences from the others": [0.333, -1.0, -1.0, 1.667],
        "differences from the greedy rollout": [0.5, -0.5, -0.5, 1.5],
    }
    return next(name for name, wanted in named.items() if wanted == found)


def reduction_of(spec: AlgorithmSpec) -> str:
    """The weights of two trajectories of one token and of three."""
    found = spec.reduction(counts_of([1, 3], [0, 1])).tolist()
    named = {
        "token_mean": [0.25, 0.25],
        "trajectory_mean": [0.5, 1 / 6],
        "constant": [1 / 2048, 1 / 2048],
    }
    return next(name for name, wanted in named.items() if wanted == pytest.approx(found))


def kl_in(spec: AlgorithmSpec) -> str:
    """Where a KL is once it has a weight, which by default it has not."""
    made = make_algorithm(spec.name, {"kl_coef": 0.1})
    assert "kl" not in spec.terms
    assert not spec.needs.reference
    return "the loss" if "kl" in made.terms else "the reward"


READ: Mapping[str, Callable[[AlgorithmSpec], Any]] = {
    "auxiliary": lambda spec: {one.name: one.coef for one in spec.auxiliary},
    "centring": lambda spec: keywords(spec.pair_loss)["centring"],
    "clip": lambda spec: (loss_of(spec)["clip_low"], loss_of(spec)["clip_high"]),
    "credit": credit_of,
    "critic warm-up": lambda spec: spec.critic_warmup_steps,
    "discount": lambda spec: keywords(spec.advantages)["discount"],
    "drops equal rewards": lambda spec: not spec.keep_group(group_of(1.0, 1.0)).keep,
    "keeps": lambda spec: keywords(spec.select)["keep"],
    "kl coefficient": lambda spec: keywords(spec.policy_loss)["kl_coef"],
    "kl estimator": lambda spec: keywords(spec.policy_loss)["kl_estimator"],
    "kl in": kl_in,
    "lam": lambda spec: keywords(spec.advantages)["lam"],
    "lam_value": lambda spec: keywords(spec.advantages)["lam_value"],
    "leaves out truncated": lambda spec: spec.select is not None,
    "length_alpha": lambda spec: keywords(spec.advantages)["length_alpha"],
    "normalises advantages": lambda spec: spec.normalize_advantages,
    "overlong": lambda spec: (
        keywords(spec.credit)["overlong"].max_tokens,
        keywords(spec.credit)["overlong"].buffer_tokens,
    ),
    "ratio bounds": lambda spec: (loss_of(spec)["ratio_floor"], loss_of(spec)["ratio_cap"]),
    "reduction": reduction_of,
    "step discount": lambda spec: keywords(keywords(spec.credit)["credit"])["discount"],
    "step weight": lambda spec: keywords(keywords(spec.credit)["credit"])["step_weight"],
    "temperatures": lambda spec: (
        loss_of(spec)["tau_positive"],
        loss_of(spec)["tau_negative"],
    ),
    "value clip": lambda spec: keywords(spec.value_loss)["clip"],
}


def rows() -> Iterator[tuple[str, str]]:
    for name, values in TABLE.items():
        for what in values:
            yield name, what


@pytest.mark.parametrize(("name", "what"), list(rows()))
def test_a_record_without_settings_has_the_papers_value(name: str, what: str) -> None:
    value = TABLE[name][what]
    assert READ[what](make_algorithm(name)) == value.wanted
    # what differs says why, and what does not has nothing to say
    assert bool(value.why) == (value.wanted != value.paper)


def test_every_algorithm_of_a_paper_is_in_the_table() -> None:
    assert TABLE.keys() | WITHOUT_PAPER == ALGORITHMS.keys()
    assert not TABLE.keys() & WITHOUT_PAPER
    for name, values in TABLE.items():
        if issubclass(ALGORITHMS[name].settings, PolicyGradientSettings):
            assert {"reduction", "credit", "drops equal rewards"} <= values.keys(), name
            assert values.keys() & {"clip", "ratio bounds", "temperatures"}, name
            needed = {"kl in", "kl estimator", "kl coefficient"}
            assert needed <= values.keys() or name == "distillation"


@pytest.mark.parametrize(
    ("name", "as_in"), [("echo", "grpo"), ("turn_grpo", "grpo")], ids=["echo", "turn_grpo"]
)
def test_what_has_no_paper_is_another_where_it_says_nothing(name: str, as_in: str) -> None:
    own, other = make_algorithm(name), make_algorithm(as_in)
    for what in ("clip", "reduction", "kl in", "kl estimator"):
        assert READ[what](own) == READ[what](other), what
    # turns are compared, and not totals alone
    assert READ["drops equal rewards"](own) == (name != "turn_grpo")
