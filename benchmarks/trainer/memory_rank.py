"""Memory rank: one of two ranks whose live memory is compared with the count on paper.

Run by ``benchmarks.trainer.ranks.run_ranks`` with a shape and the lengths of a row.
"""

from __future__ import annotations

import argparse
import json

import torch

from agentrl.training import DistSpec, join, leave
from benchmarks.trainer.memory_count import live
from benchmarks.trainer.ranks import RANKS


def main() -> None:
    """Prints the peak of a step and all that lives after it, bytes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("shape")
    parser.add_argument("lengths", type=int, nargs="+")
    own = parser.parse_args()
    torch.set_num_threads(1)
    place = DistSpec(own.rank, RANKS, port=own.port)
    join(place)
    count, after = live(own.shape, place, own.lengths, recompute=True, dtype=torch.float32)
    leave()
    print(json.dumps([count.step_peak, after]))


if __name__ == "__main__":
    main()
