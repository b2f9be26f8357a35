"""How long an update of many ranks takes: the cost of collectives, and a simulation of ranks that wait for each other.

An update is a rollout, which every rank collects on its own, and then a chain of gradient steps. Each step waits for
the slowest rank and for a reduction. The times of ranks are random: gamma distributions with a given coefficient of
variation (0: always the mean, 1: exponential). All times are in seconds, all sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Link:
    """Between two ranks: a message of b bytes takes latency + b / bandwidth."""

    latency: float
    bandwidth: float

    def step(self, size: float) -> float:
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Network:
    """Nodes of `per_node` ranks: `near` links them within a node, `far` between nodes."""

    near: Link
    far: Link
    per_node: int = 8

    def nodes(self, ranks: int) -> int:
        return ceil(ranks / self.per_node)

    def link(self, ranks: int) -> Link:
        """What sets the pace of a ring: its slowest link."""
        if self.nodes(ranks) == 1:
            return self.near
        return Link(max(self.near.latency, self.far.latency), min(self.near.bandwidth, self.far.bandwidth))


def ring(size: float, ranks: int, link: Link) -> float:
    """Reduce-scatter and all-gather around a ring, 2 (R − 1) messages of size / R: gloo's default."""
    return 2 * (ranks - 1) * link.step(size / ranks)


def tree(size: float, ranks: int, network: Network) -> float:
    """Recursive halving and doubling: 2 log₂ R latencies, the bytes of a ring (Thakur et al. 2005).

    The ranks of a node exchange with other nodes at the same time, so they share its link.
    """
    nodes, each = network.nodes(ranks), min(ranks, network.per_node)
    latencies = ceil(log2(nodes)) * network.far.latency + ceil(log2(each)) * network.near.latency
    far = (1 - 1 / nodes) * size * each / network.far.bandwidth
    near = (1 - 1 / each) * size / nodes / network.near.bandwidth
    return 2 * (latencies + far + near)


def hierarchical(size: float, ranks: int, network: Network) -> float:
    """Sum within each node, halving and doubling between nodes, then pass the result on.

    Within a node, a tree is faster for small sizes and a ring for large ones.
    """
    each = min(ranks, network.per_node)
    within = min(2 * ceil(log2(each)) * network.near.step(size), ring(size, each, network.near))
    return within + tree(size, network.nodes(ranks), replace(network, per_node=1))


def gathered(size: float, ranks: int, link: Link) -> float:
    """An object of every rank to all: first their sizes, then themselves, each around a ring."""
    return (ranks - 1) * (link.latency + link.step(size))


@dataclass(frozen=True)
class Work:
    """What one rank does for an update, by itself."""

    rollout: float  # seconds to collect
    gradient: float  # seconds for the gradient of one minibatch and its step
    steps: int  # minibatches × epochs
    size: float  # bytes of the gradient
    small: int = 0  # other reductions per update: metrics, moments, decisions
    gathers: int = 0  # objects that every rank tells all
    object_size: float = 0.0  # of such an object
    call: float = 0.0  # software's part of any exchange, whatever the number of ranks
    unpack: float = 0.0  # to read one rank's object
    alone: float = 0.0  # seconds per update in which the first rank writes and all wait
    rollout_cv: float = 0.0
    gradient_cv: float = 0.0
    samples: float = 1.0  # of a rollout


@dataclass(frozen=True)
class Plan:
    """What could be changed about the exchange."""

    reduction: str = "ring"  # or "tree" or "hierarchical"
    compression: float = 1.0  # bytes are divided by it
    fewer: int = 1  # minibatches are that many times larger, and as many times fewer
    preempt: float = 1.0  # once this share of the ranks has its rollout, the others stop theirs
    least: float = 0.25  # but not before this share of their own rollout (DD-PPO's value)
    stale: int = 0  # how many updates old the policy of a rollout may be


def reduction(work: Work, plan: Plan, network: Network, ranks: int, size: float) -> float:
    """Seconds for one all-reduce."""
    if ranks == 1:
        return 0.0
    small = size / plan.compression
    if plan.reduction == "ring":
        return work.call + ring(small, ranks, network.link(ranks))
    return work.call + {"tree": tree, "hierarchical": hierarchical}[plan.reduction](small, ranks, network)


def gather(work: Work, plan: Plan, network: Network, ranks: int) -> float:
    """Seconds until every rank has read the objects of all. Plans without a ring gather along a tree."""
    if ranks == 1:
        return 0.0
    link = network.link(ranks)
    if plan.reduction == "ring":
        path = gathered(work.object_size, ranks, link)
    else:
        path = 2 * ceil(log2(ranks)) * link.latency + (ranks - 1) * work.object_size / link.bandwidth
    return work.call + path + (ranks - 1) * work.unpack


def exchange(work: Work, plan: Plan, network: Network, ranks: int) -> tuple[float, float]:
    """Seconds per gradient step, and per update for everything else."""
    step = reduction(work, plan, network, ranks, work.size)
    # Numbers that decide something are not compressed.
    other = work.small * reduction(work, replace(plan, compression=1.0), network, ranks, 64.0)
    return step, other + work.gathers * gather(work, plan, network, ranks)


def draw(random: np.random.Generator, mean: float, cv: float, shape: tuple[int, ...]) -> Times:
    if cv == 0.0 or mean == 0.0:
        return np.full(shape, mean)
    return random.gamma(1 / cv**2, mean * cv**2, shape)


def simulate(
    work: Work, plan: Plan, network: Network, ranks: int, *, updates: int = 100, seed: int = 0
) -> tuple[float, float]:
    """(samples per second of all ranks, share of the full rollouts that was collected)."""
    random = np.random.default_rng(seed)
    steps = max(1, work.steps // plan.fewer) if work.steps else 0
    gradient = work.gradient * work.steps / max(steps, 1)
    step, other = exchange(work, plan, network, ranks)
    free = np.zeros(ranks)  # when each rank can begin its next rollout
    done = np.zeros(updates + 1)  # when each update was complete on all ranks; the first entry is the start
    kept = 0.0
    for update in range(updates):
        # A rank may begin with a policy that is `stale` updates old.
        begin = np.maximum(free, done[max(0, update - plan.stale)])
        own = draw(random, work.rollout, work.rollout_cv, (ranks,))
        end, share = preempted(begin, own, plan)
        kept += float(share.mean())
        gradients = draw(random, gradient, work.gradient_cv, (steps, ranks))
        if plan.stale:
            # Each rank goes on while the network works; the network handles one update after the other.
            free = end + gradients.sum(0)
            together = max(float(free.max()), done[update])
        else:
            together = float(end.max()) + float(gradients.max(1).sum())
        done[update + 1] = together + steps * step + other + work.alone
        if not plan.stale:
            free[:] = done[update + 1]
    return work.samples * ranks * kept / done[-1], kept / updates


def preempted(begin: Times, own: Times, plan: Plan) -> tuple[Times, Times]:
    """(when each rank's rollout ends, how much of it was collected)."""
    end = begin + own
    enough = ceil(plan.preempt * len(end))
    if enough == len(end):
        return end, np.ones_like(end)
    stop = np.partition(end, enough - 1)[enough - 1]
    end = np.minimum(end, np.maximum(stop, begin + plan.least * own))
    return end, (end - begin) / np.maximum(own, 1e-300)


def efficiency(
    work: Work, plan: Plan, network: Network, ranks: int, *, alone: Work | None = None, updates: int = 100
) -> float:
    """Samples per second and rank, relative to one rank; `alone`: its work, if it differs from that of `ranks`."""
    one = alone or work
    many, _ = simulate(work, plan, network, ranks, updates=updates)
    return many / ranks * (one.rollout + one.steps * one.gradient + one.alone) / one.samples
