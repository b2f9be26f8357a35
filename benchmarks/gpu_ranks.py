"""Several processes of one run on GPUs: do they learn what one process learns?

    python benchmarks/gpu_ranks.py [--out benchmarks/results/gpu_ranks.json]

Every algorithm is trained for one update on CartPole with eight envs: by one process on the GPU, and by two processes
that share it (torchrun; gloo sums through the host). Their weights must agree up to rounding. NCCL needs a GPU for each
process. Where there is only one, it is tried with a single process that counts its own numbers twice, as if a twin had
the other half of the envs: the same gradients go through NCCL's all-reduce on the GPU, and the weights must be those of
the same twins without NCCL, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine

ALGORITHMS = ("reinforce", "vpg", "a2c", "npg", "trpo", "ppo-penalty", "ppo")
CLOSE = 2e-4  # the largest difference of a weight that rounding explains


def weights(algo: str, group: Any) -> Any:
    """All weights after one update."""
    import torch

    from surefoot.training.callbacks import Callback
    from surefoot.training.config.resolve import resolve
    from surefoot.training.trainer import Trainer

    class Once(Callback):
        def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            trainer.stop("once")

    settings: dict[str, Any] = {
        "total_steps": 100_000,
        "num_envs": 8,
        "engine": "torch",
        "device": "cuda",
        "threads": 1,
    }
    settings |= {} if algo == "reinforce" else {"rollout_length": 32}
    trainer = Trainer(
        resolve("CartPole-v1", algo, preset="none", overrides=settings), 3, callbacks=[Once()], group=group
    )
    trainer.train()
    assert trainer.device.type == "cuda"
    return torch.cat([parameter.detach().cpu().flatten() for parameter in trainer.policy.parameters()])


class Twin:
    """The first of two processes whose other one has the same numbers."""

    size, index = 2, 0

    def __init__(self, nccl: bool) -> None:
        self.nccl, self.calls, self.elements = nccl, 0, 0

    def sum_(self, numbers: Any) -> Any:
        self._through_nccl(numbers)
        return numbers.mul_(2)

    def max_(self, numbers: Any) -> Any:
        self._through_nccl(numbers)
        return numbers

    def _through_nccl(self, numbers: Any) -> None:
        import torch.distributed as distributed

        if self.nccl and numbers.is_cuda:
            distributed.all_reduce(numbers)
            self.calls, self.elements = self.calls + 1, self.elements + numbers.numel()

    def agree(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


def shared_gpu() -> None:
    """In a process of torchrun: train, and let the first one print the weights."""
    import torch

    from surefoot.engine.group import joined

    with joined() as group:
        found = {algo: weights(algo, group) for algo in ALGORITHMS}
        if group.index == 0:
            torch.save(found, os.environ["WEIGHTS"])


def with_nccl() -> dict[str, Any]:
    """{algorithm: calls and elements that went through NCCL, and whether the weights are equal}."""
    import torch
    import torch.distributed as distributed

    store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    found = {}
    for algo in ALGORITHMS:
        twin = Twin(nccl=True)
        equal = torch.equal(weights(algo, twin), weights(algo, Twin(nccl=False)))
        found[algo] = {"calls": twin.calls, "elements": twin.elements, "equal": equal}
    distributed.destroy_process_group()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "gpu_ranks.json", metavar="FILE.json")
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        shared_gpu()
        return 0
    import torch

    from surefoot.engine.group import ALONE

    if not torch.cuda.is_available():
        sys.exit("this needs a GPU")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        own = {**os.environ, "WEIGHTS": str(file), "OMP_NUM_THREADS": "1"}
        subprocess.run([*launcher, __file__, "--member"], check=True, env=own)
        together = torch.load(file, weights_only=True)
    table = machine.head("algorithm", "largest difference, two processes on one GPU", "NCCL: calls", "equal")
    nccl, rows = with_nccl(), {}
    for algo in ALGORITHMS:
        difference = float((together[algo] - weights(algo, ALONE)).abs().max())
        rows[algo] = {"difference": difference, "nccl": nccl[algo]}
        table.append(machine.row(algo, f"{difference:.1e}", nccl[algo]["calls"], nccl[algo]["equal"]))
    version = ".".join(map(str, torch.cuda.nccl.version()))
    facts = {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "nccl": version}
    machine.write({"machine": machine.describe() | facts, "algorithms": rows}, table, arguments.out)
    fine = all(row["difference"] < CLOSE and row["nccl"]["equal"] and row["nccl"]["calls"] for row in rows.values())
    print(json.dumps({"fine": fine}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
