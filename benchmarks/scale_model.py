"""How well a run would scale to 1,024 ranks: a model fitted to `ranks.json`, simulated, checked against publications.

    python benchmarks/ranks.py                  # first: measures what the model is fitted to
    python benchmarks/scale_model.py [--updates 30] [--ranks-file FILE.json]

`scale_simulation.py` has the formulas; `published_scaling.py` compares them with what others measured. Nothing here was
run on a cluster: latencies and bandwidths of networks are assumptions with the sources that `NETWORKS` names.

The camera policy is not measured: it has the settings of DD-PPO, and rollouts that vary by 30 %.

Weak scaling: every rank keeps 16 envs. Strong scaling: 1,024 envs are shared by all ranks, one each at the end.
Efficiency is samples per second and rank, relative to one rank. What older policies and shortened rollouts do to the
learning is not modelled.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np
from published_scaling import FAST, camera_policy, checks
from scale_simulation import Link, Network, Plan, Work, efficiency, exchange

RANKS = (2, 8, 64, 256, 1024)
WEAK_ENVS = 16  # of each rank
STRONG_ENVS = 1024  # of all ranks
PER_NODE = 8  # ranks

# Bandwidth over TCP: half of the line rate, which is what a ring of Ray's reached (see `published_scaling.py`).
NETWORKS: dict[str, tuple[Link, str]] = {
    "cloud, 10 Gbit/s TCP": (
        Link(48e-6, 10e9 / 8 / 2),
        "round trips of 92 to 100 µs between AWS C3 instances of a placement group (scalablelogic.com, 2014)",
    ),
    "cluster, 25 Gbit/s TCP": (
        Link(20e-6, 25e9 / 8 / 2),
        "one way through the kernel's TCP: 10 µs at best (Larsen et al., SBAC-PAD 2007), 10 to 30 µs typical "
        "(kentino.com, 'Latency dissection')",
    ),
    "RDMA, 100 Gbit/s": (
        Link(2e-6, 100e9 / 8),
        "round trips of about 2 µs over one switch, 1 µs more over leaf and spine (kentino.com); needs NCCL or MPI, "
        "gloo does not use it",
    ),
}
CAMERA_CV = 0.3  # assumed variation of the rollouts of a camera policy
MAIN = "cluster, 25 Gbit/s TCP"
NOW, THEN = "one ring, as now", "first within each node, then between nodes"
PLANS: dict[str, Plan] = {
    NOW: Plan(),
    "a quarter of the minibatches": Plan(fewer=4),
    "gradients in half precision (bytes / 2)": Plan(compression=2.0),
    "gradients of one bit per number (bytes / 32)": Plan(compression=32.0),
    "halving and doubling instead of the ring": Plan("tree"),
    THEN: Plan("hierarchical"),
    "that, in half precision": Plan("hierarchical", compression=2.0),
    "that, with stragglers stopped once 60 % are done": Plan("hierarchical", preempt=0.6),
    "that, with policies one update old": Plan("hierarchical", stale=1),
}
SHOWN = (64, 1024)  # ranks in the table of plans


@dataclass(frozen=True)
class Fit:
    """What was measured here, as numbers of the model."""

    call: float  # seconds of software per exchange
    near: Link
    unpack: float  # seconds to read one rank's object
    error: dict[str, float]  # by ranks: the median of |predicted / measured − 1| over all sizes


@dataclass(frozen=True)
class Costs:
    """Seconds of one rank with n envs: rollout_length · (n · env + act + act_each · n), and likewise gradients."""

    rollout_length: int
    env: float  # per env step
    act: tuple[float, float]  # per time step: fixed, and per env
    gradient: tuple[float, float]  # per minibatch: fixed, and per sample
    alone: float  # per update: logs and checkpoints
    rollout_cv: float
    gradient_cv: float
    minibatches: int
    exchanged: dict[str, Any]  # with the fewest ranks: kinds and sizes

    def work(self, num_envs: float, fit: Fit) -> Work:
        kinds = self.exchanged["exchanges"]
        acting = self.act[0] + self.act[1] * num_envs
        samples = self.rollout_length * num_envs
        return Work(
            rollout=self.rollout_length * (num_envs * self.env + acting),
            gradient=self.gradient[0] + self.gradient[1] * samples / self.minibatches,
            steps=round(kinds["gradients"]),
            size=self.exchanged["gradient_bytes"],
            small=round(kinds.get("sum", 0) + kinds.get("max", 0) + kinds.get("agree", 0)),
            gathers=round(kinds.get("gather", 0)),
            object_size=self.exchanged["object_bytes"],
            call=fit.call,
            unpack=fit.unpack,
            alone=self.alone,
            rollout_cv=self.rollout_cv,
            gradient_cv=self.gradient_cv,
            samples=samples,
        )


def not_negative(columns: Any, values: Any) -> Any:
    """Least squares of the relative errors; a coefficient that would be negative is zero instead."""
    scaled, kept = columns / values[:, None], list(range(columns.shape[1]))
    while True:
        found = np.linalg.lstsq(scaled[:, kept], np.ones(len(values)), rcond=None)[0]
        if (found >= 0).all():
            break
        kept.pop(int(found.argmin()))
    whole = np.zeros(columns.shape[1])
    whole[kept] = found
    return whole


def fit_reductions(found: dict[str, Any], cores: int) -> Fit:
    """Measured seconds = call + 2 (R − 1) · (latency + bytes / R / bandwidth): the ring that gloo uses.

    Ranks that exceed the cores wait for their turns, which they would not on a cluster, so they are left out. From one
    number of ranks alone, call and latency cannot be told apart: then everything counts as `call`.
    """
    found = {r: one for r, one in found.items() if int(r) <= max(2, cores)}
    points = [(int(r), float(size), own["median"]) for r, one in found.items() for size, own in one["sums"].items()]
    ranks, sizes, seconds = (np.array(column) for column in zip(*points, strict=True))
    messages = 2 * (ranks - 1) * (len(found) > 1)
    columns = np.stack([np.ones_like(sizes), messages, 2 * (ranks - 1) / ranks * sizes], axis=1)
    call, latency, per_byte = not_negative(columns, seconds)
    off = np.abs(columns @ (call, latency, per_byte) / seconds - 1)
    error = {str(r): float(np.median(off[ranks == r])) for r in sorted(set(ranks.tolist()))}
    gathers = np.array([(int(r) - 1, one["gather"]) for r, one in found.items()])
    slope = np.polyfit(*gathers.T, 1)[0] if len(gathers) > 1 else 0.0
    unpack = max(0.0, float(slope) - 2 * latency)
    return Fit(float(call), Link(float(latency), 1 / max(float(per_byte), 1e-15)), unpack, error)


def fit_costs(found: dict[str, Any]) -> Costs:
    """One rank's costs from single processes with different numbers of envs."""
    length, minibatches = found["rollout_length"], found["minibatches"]
    numbers = np.array([float(n) for n in found["alone"]])
    rows = list(found["alone"].values())
    fewest = found["together"][min(found["together"], key=int)]
    steps = fewest["exchanges"]["gradients"]
    ones = np.ones_like(numbers)
    act = not_negative(np.stack([ones, numbers], axis=1), np.array([row["act"] for row in rows]) / length)
    samples = numbers * length / minibatches
    gradient = not_negative(np.stack([ones, samples], axis=1), np.array([row["learn"] for row in rows]) / steps)
    return Costs(
        rollout_length=length,
        env=float(np.median([row["env"] / (length * n) for n, row in zip(numbers, rows, strict=True)])),
        act=(float(act[0]), float(act[1])),
        gradient=(float(gradient[0]), float(gradient[1])),
        alone=float(np.median([row["seconds"] - row["env"] - row["act"] - row["learn"] for row in rows])),
        rollout_cv=found["alone"][str(WEAK_ENVS)]["rollout_cv"],
        gradient_cv=fewest["gradient_cv"],
        minibatches=minibatches,
        exchanged=fewest,
    )


def shared(costs: Costs, fit: Fit, ranks: int) -> Work:
    """The work of each rank if they share the envs."""
    return costs.work(STRONG_ENVS / ranks, fit)


def on_this_machine(costs: Costs, fit: Fit, together: dict[str, Any], cores: int) -> dict[str, Any]:
    """Seconds per update, predicted and measured; ranks beyond the cores take turns."""
    network, found = Network(fit.near, fit.near, per_node=64), {}
    for name, own in together.items():
        ranks = int(name)
        work, turns = costs.work(own["num_envs"] / ranks, fit), max(1.0, ranks / cores)
        step, other = exchange(work, Plan(), network, ranks)
        seconds = turns * (work.rollout + work.steps * work.gradient) + work.steps * step + other + work.alone
        found[name] = {"predicted": seconds, "measured": own["seconds"], "ratio": seconds / own["seconds"]}
    return found


def predictions(weak: Work, strong: Callable[[int], Work] | None, near: Link, updates: int) -> dict[str, Any]:
    """Efficiency by network, kind of scaling, plan and number of ranks."""
    found: dict[str, Any] = {}
    for name, (link, _) in NETWORKS.items():
        # Software that is faster between nodes than gloo is within a node is not slower within one.
        network = Network(replace(near, latency=min(near.latency, link.latency)), link, PER_NODE)
        own = {plan: {str(r): efficiency(weak, how, network, r, updates=updates) for r in RANKS}
               for plan, how in PLANS.items()}  # fmt: skip
        found[name] = {"weak": own}
        if strong is not None:
            found[name]["strong"] = {
                plan: {
                    str(r): efficiency(strong(r), PLANS[plan], network, r, alone=strong(1), updates=updates)
                    for r in RANKS
                }
                for plan in (NOW, THEN)
            }
    return found


def worth_it(found: dict[str, dict[str, float]], plan: str) -> str:
    """From how many ranks on a plan is at least a tenth better than what is done now."""
    better = [r for r in RANKS if found[plan][str(r)] >= 1.1 * found[NOW][str(r)]]
    return f"{better[0]:,} ranks" if better else "–"


def table(result: dict[str, Any]) -> list[str]:
    lines = machine.head(f"{NOW} → {THEN}", *(f"{ranks:,} ranks" for ranks in RANKS))
    for env, own in result["envs"].items():
        for network, kinds in own["predicted"].items():
            for kind, found in kinds.items():
                if kind == "weak" or network == MAIN:
                    cells = (f"{found[NOW][str(r)]:.2f} → {found[THEN][str(r)]:.2f}" for r in RANKS)
                    lines.append(machine.row(f"{env}; {network}; {kind}", *cells))
    titles = [f"{env}: {' and '.join(f'{r:,}' for r in SHOWN)} ranks | a tenth better from" for env in result["envs"]]
    lines += ["", f"Weak scaling, {MAIN}:", "", *machine.head("plan", *" | ".join(titles).split(" | "))]
    for plan in PLANS:
        cells = []
        for own in result["envs"].values():
            found = own["predicted"][MAIN]["weak"]
            cells += [", ".join(f"{found[plan][str(r)]:.2f}" for r in SHOWN), worth_it(found, plan)]
        lines.append(machine.row(plan, *cells))
    left_out = "ranks that exceed the cores wait for their turns, which the model leaves out"
    lines += ["", f"Here, the model and the measurement ({left_out}):", ""]
    lines += machine.head("ranks of this machine", "predicted, ms per update", "measured")
    for env, own in result["envs"].items():
        for ranks, seconds in own.get("on_this_machine", {}).items():
            cells = [f"{1e3 * seconds[name]:,.0f}" for name in ("predicted", "measured")]
            lines.append(machine.row(f"{env}, {ranks} ranks", *cells))
    lines += ["", "What others published:", "", *machine.head("", "published", "model", "verdict")]
    return lines + [machine.row(c["what"], c["published"], c["model"], c["verdict"]) for c in result["checks"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks-file", type=Path, default=machine.RESULTS / "ranks.json", metavar="FILE.json")
    parser.add_argument("--updates", type=int, default=30, help="to simulate for each prediction [30]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "scale_model.json", metavar="FILE.json")
    arguments = parser.parse_args()
    measured = json.loads(arguments.ranks_file.read_text(encoding="utf-8"))
    fit = fit_reductions(measured["reductions"]["found"], measured["updates"]["machine"]["cores"])
    networks = {name: asdict(link) | {"source": source} for name, (link, source) in NETWORKS.items()}
    result: dict[str, Any] = {"machine": measured["updates"]["machine"], "fit": asdict(fit), "networks": networks}
    result |= {"per_node": PER_NODE, "plans": {name: asdict(plan) for name, plan in PLANS.items()}, "envs": {}}
    for name, found in measured["updates"]["found"].items():
        costs = fit_costs(found)
        strong = partial(shared, costs, fit)
        result["envs"][name] = {
            "costs": asdict(costs),
            "on_this_machine": on_this_machine(costs, fit, found["together"], result["machine"]["cores"]),
            "predicted": predictions(costs.work(WEAK_ENVS, fit), strong, fit.near, arguments.updates),
        }
        print(f"{name} done", flush=True)
    camera = replace(camera_policy(CAMERA_CV), call=fit.call)
    predicted = predictions(camera, None, FAST, arguments.updates)
    result["envs"]["camera policy (assumed)"] = {"work": asdict(camera), "predicted": predicted}
    result["checks"] = checks()
    machine.write(result, table(result), arguments.out)


if __name__ == "__main__":
    main()
