"""peft's side of a comparison, in a process of its own: ``python peft_side.py JOB ANSWER``.

The job is a pickled list of calls, a function's name and its arguments each; the answer is saved by
torch.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.kit.in_float64 import InFloat64


def gradients(
    base: str,
    adapter: str,
    samples: list[list[int]],
    masks: list[list[float]],
    config: Any,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Makes an adapter whose factors are all drawn, and tells a loss and its gradients.

    The loss is the sum of the masked tokens' logprobs, or of the samples' scores.
    """
    is_policy = config["task_type"] == "CAUSAL_LM"
    auto = AutoModelForCausalLM if is_policy else AutoModelForSequenceClassification
    model = auto.from_pretrained(
        base, dtype=dtype, **({} if is_policy else {"num_labels": 1})
    )
    # grouped products know no float64
    model.set_experts_implementation("eager")
    made = get_peft_model(model, LoraConfig(**config))
    generator = torch.Generator().manual_seed(5)
    trained = {name: one for name, one in made.named_parameters() if one.requires_grad}
    with torch.no_grad():
        for one in trained.values():
            one.normal_(0.0, 0.2, generator=generator)
    made.save_pretrained(adapter)
    total = torch.zeros((), dtype=torch.float64)
    for ids, mask in zip(samples, masks, strict=True):
        with InFloat64():
            answer = made(input_ids=torch.tensor([ids])).logits[0]
        if is_policy:
            logprobs = answer[:-1].log_softmax(-1)
            own = logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
            total = total + (own * torch.tensor(mask[1:])).sum()
        else:
            total = total + answer.sum()
    total.backward()
    return {
        "loss": float(total.detach()),
        "gradients": {
            name.replace(".default", "").replace(".modules_to_save", ""): one.grad
            for name, one in trained.items()
        },
    }


def logits(base: str, adapter: str, ids: list[int]) -> dict[str, Any]:
    """What a base with an adapter of ours answers; peft says nothing of the folder."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        found = made(input_ids=torch.tensor([ids])).logits
    return {
        "logits": found,
        "said": [str(one.message) for one in said if issubclass(one.category, UserWarning)],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    calls = pickle.loads(Path(sys.argv[1]).read_bytes())
    answers = [globals()[name](**given) for name, given in calls]
    torch.save(answers, sys.argv[2])
