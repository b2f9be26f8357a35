"""Chooses the number of threads for the compiled kernels by measuring. Results do not depend on it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch

from surefoot.engine.torch.threads import STRETCH
from surefoot.kernels.network import Network
from surefoot.kernels.specs import loss_spec, optimizer_spec
from surefoot.limits import most_threads

if TYPE_CHECKING:
    from surefoot.kernels.description import Description

GAIN = 1.15  # required speed-up for more threads: threads that wait for each other slow other programs down
ROUNDS, STEPS = 5, 6


def fastest(description: Description, samples: int) -> Network:
    """The network with the number of threads that is fastest for gradient steps on this many samples."""
    best, threads = Network(description, 1), 2
    while threads <= min(most_threads(), best.tasks(samples)):
        other = Network(description, threads)
        if other.threads < threads:  # the system refused, and will refuse more as well
            best.asked = threads
            break
        before, after = _times((best, other), samples)
        if after * GAIN > before:
            break
        best, threads = other, 2 * threads
    return best


def _times(nets: tuple[Network, Network], samples: int) -> list[float]:
    """Seconds for a few gradient steps of each network: the best of several rounds, alternating."""
    found = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for at, net in enumerate(nets):
            found[at] = min(found[at], _time(net, samples))
    return found


def _context(description: Description, samples: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The samples as sequences of about `STRETCH` steps, if there is a memory."""
    cell = description.memory
    if cell is None:
        return None
    sequences = next(n for n in range(max(1, samples // STRETCH), 0, -1) if samples % n == 0)
    size = (2 if cell.lstm else 1) * cell.of_hidden.inputs
    start = torch.zeros((samples // sequences, sequences), dtype=torch.bool, device="cpu")
    return start, _zeros(sequences, size)


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float32, device="cpu")


def _time(net: Network, samples: int) -> float:
    d = net.description
    theta, gradient = _zeros(d.size), _zeros(d.size)
    actions = max(part.action + part.kind.actions(part.size) for part in d.parts)
    x, action, column = _zeros(samples, net.width), _zeros(samples, actions), _zeros(samples)
    x[:, net.width - d.masks :] = 1.0  # every choice is legal
    batch = net.batch(x, action, column, None, column, column, column, context=_context(d, samples))
    spec = loss_spec("clip", 0.2, value_coef=0.5, with_value=bool(d.critic))
    optimizer = optimizer_spec("adam", [(0, d.size, 0.0)], None)
    moments = (_zeros(d.size), _zeros(d.size))
    start = perf_counter()
    net.epochs(theta, gradient, moments, 0, spec, optimizer, batch, None, STEPS, 1, normalize=False)
    return perf_counter() - start
