"""How fast fused gradient steps are with tiles of other sizes, for one agent and for many, to choose `division` by.

    python benchmarks/gpu_tiles.py                                # prints a table; on a GPU
    python benchmarks/gpu_tiles.py --agents 256 --rows 256 --precision float32 --json FILE

For each number of agents and of rows in a minibatch, and each division of these rows: microseconds of a gradient step
of all agents (two nets of 64-64, a choice of two), and of its three kernels. One agent must have the bits that it has
among many; where it has not, the row says so, and the division cannot be used.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_kernels
import machine
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.engine.cuda.fused_passes import terms_of
from surefoot.engine.cuda.passes import FixedLoss
from surefoot.engine.cuda.population.passes import several_of
from surefoot.engine.cuda.whole_nets import WholeNets, whole_nets
from surefoot.engine.names import Precision

DIGITS: dict[Precision, int] = {"float32": 3, "tf32": 2, "bf16": 1}  # parts of a number in products
SIZES = {16: (4, 8, 16), 32: (2, 4, 8), 64: (1, 2, 4, 8)}  # rows of a tile: tiles of a group
REPEATED, ROUNDS = 20, 15  # steps in a graph, and how often it is timed


def divisions(rows: int, digits: int) -> Iterator[Any]:
    """Those to try. With one digit there are no groups, but a program may take several tiles."""
    from surefoot.kernels.fused_update import PROGRAMS, Division

    for size, groups in SIZES.items():
        least = math.ceil(math.ceil(rows / size) / PROGRAMS)
        if digits == 1 or least > 1:
            yield from (Division(size, 1, max(each, least)) for each in sorted({1, *groups}))
        else:
            yield from (Division(size, group, 1) for group in groups if group == 1 or (group - 1) * size < rows)


class Step:
    """Gradient steps of several agents on minibatches of their own."""

    def __init__(self, agents: int, rows: int, precision: Precision, divided: Any) -> None:
        from surefoot.kernels.fused_descent import Descent, Optimizer, Report
        from surefoot.kernels.fused_update import Gradients, Rows

        policy, _, flat = gpu_kernels.policy_and_nets(gpu_kernels.SEEN, spaces.Discrete(2), hidden_sizes=(64, 64))
        batch, loss = gpu_kernels.batch_for(policy, rows), gpu_kernels.LOSSES["clip"]
        theta = flat.vector.repeat(agents, 1).contiguous() if agents > 1 else flat.vector
        nets = whole_nets(policy, theta if agents == 1 else theta[0], precision)
        assert isinstance(nets, WholeNets), nets
        terms, fixed = terms_of(loss, "joint", normalize=True, has_critic=True), FixedLoss(loss, theta.device)
        assert not isinstance(terms, str), terms
        all_ = batch if agents == 1 else several_of(batch, agents)
        numbers = fixed.numbers if agents == 1 else fixed.numbers.repeat(agents, 1).contiguous()
        columns = (all_.log_prob, all_.dist_params, all_.advantage, all_.value_target, all_.value)
        of_all = Rows(all_.obs, all_.action, *columns, None)
        self.theta, self.rows, lead = theta, rows, theta.shape[:-1]
        self.gradients = Gradients(theta, nets.actor, nets.critic, terms, of_all, 1, numbers, divided)
        table = torch.tensor([[1.0, -3e-4]], device=theta.device).expand(*lead, REPEATED, 2).contiguous()

        def zeros(*size: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((*lead, *size), dtype=kind, device=theta.device)

        size, index = theta.shape[-1], zeros(kind=torch.int64)
        optimizer = Optimizer(
            zeros(size), zeros(size), table, index, zeros() + 0.5, 0, size, slices=1, adam=True, eps=1e-5
        )
        self.descent = Descent(self.gradients, optimizer, Report(zeros(6), zeros(), zeros(flat.actor_size), zeros()))

    def compute(self) -> None:
        self.gradients.compute(0)

    def all(self) -> None:
        self.gradients.prepare()
        self.gradients.compute(0)
        self.descent.step(0, opening=False)


def microseconds(work: Callable[[], None]) -> float:
    """Of one of many repetitions in a CUDA graph, the median."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATED):
            work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    times: list[float] = []
    for _ in range(ROUNDS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / REPEATED)
    return sorted(times)[ROUNDS // 2]


def measured(agents: int, rows: int, precision: Precision, divided: Any) -> dict[str, Any]:
    steps = Step(agents, rows, precision, divided)
    steps.all()
    found = steps.theta.view(-1, steps.theta.shape[-1])[-1].clone()
    row: dict[str, Any] = {"each": steps.gradients.tiles}
    row["gradient"], row["sums"] = microseconds(steps.compute), microseconds(steps.descent.add_up)
    row["whole"] = microseconds(steps.all)
    if agents > 1:
        single = Step(1, rows, precision, divided)
        single.all()
        row["same"] = torch.equal(single.theta, found)
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024, 4096], help="of a minibatch")
    parser.add_argument("--precision", nargs="+", choices=list(DIGITS), default=["float32"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": machine.describe(), "device": torch.cuda.get_device_name()}
    for agents in given.agents:
        for rows in given.rows:
            for precision in given.precision:
                for divided in divisions(rows, DIGITS[precision]):
                    name = f"{agents} x {rows}, {precision}, tiles of {divided.rows}, groups of {divided.group}"
                    try:
                        found[name] = measured(agents, rows, precision, divided)
                    except Exception as error:  # a tile that needs more than the GPU has
                        found[name] = {"failed": str(error).strip().partition("\n")[0]}
                    print(name, found[name], flush=True)
    if given.json is not None:
        machine.keep(found, given.json)


if __name__ == "__main__":
    main()
