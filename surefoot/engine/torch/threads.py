"""Chooses PyTorch's number of threads by measuring. Its sums depend on the number, so a run keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.torch_threads import torch_threads
from surefoot.limits import most_threads
from surefoot.policies.torch_defaults import no_global_draws
from surefoot.types import Context

if TYPE_CHECKING:
    from surefoot.policies.actor_critic import ActorCritic

GAIN = 1.25  # required speed-up for more threads; high enough that noise rarely decides
ROUNDS, SECONDS = 3, 0.03  # per measurement, at least
STRETCH = 128  # typical rollout length for a policy with memory
MOST_SAMPLES = 1024  # the result for these also holds for more
SMALL = 2_000_000  # parameters × samples of a step of about a millisecond, which threads hardly make faster


def fastest_torch(policy: ActorCritic, samples: int, most: int | None = None) -> tuple[int, str]:
    """(threads, why): the fastest number for gradient steps of this policy on this many samples. Changes nothing."""
    limit, threads, gain = most or most_threads(), 1, 1.0
    if limit == 1 or _is_small(policy, samples):
        return 1, ""
    with _untouched(policy):
        step = _gradient_step(policy, min(samples, MOST_SAMPLES))
        while 2 * threads <= limit:
            before, after = _times(step, (threads, 2 * threads))
            if after * GAIN > before:
                break
            threads, gain = 2 * threads, gain * before / after
    return threads, f"{gain:.1f} times as fast as one" if threads > 1 else "more are not faster"


def _is_small(policy: ActorCritic, samples: int) -> bool:
    """Whether one thread is as good as several. Then noise should not decide, since the bytes of a run depend on it.

    An encoder may use a parameter many times, as a convolution does.
    """
    size = sum(parameter.numel() for parameter in policy.parameters())
    return policy.encoder is None and size * min(samples, MOST_SAMPLES) < SMALL


@contextmanager
def _untouched(policy: ActorCritic) -> Iterator[None]:
    """Restore buffers and RNG state changed while timing a user's encoder."""
    buffers = [(buffer, buffer.clone()) for buffer in policy.buffers()]
    with no_global_draws():
        yield
    for buffer, before in buffers:
        buffer.copy_(before)


def _gradient_step(policy: ActorCritic, samples: int) -> Callable[[], object]:
    """A function that runs a forward and a backward pass; no gradient is kept."""
    layout, actions, context = policy.layout, policy.actions, None
    memory = policy.initial_memory(max(1, samples // STRETCH))
    if memory is not None:  # sequences as in a rollout, because threads share work by sequence
        samples -= samples % len(memory)
        context = Context(torch.zeros((samples // len(memory), len(memory)), dtype=torch.bool, device="cpu"), memory)
    obs = torch.from_numpy(np.zeros((samples, *layout.shape), layout.dtype))
    if layout.mask is not None:
        obs[..., layout.mask] = 1  # every choice is legal
    inputs, action = policy.normalize(obs), torch.zeros((samples, *actions.shape), dtype=actions.dtype, device="cpu")
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]

    def step() -> tuple[Tensor | None, ...]:
        outputs = policy.evaluate(inputs, action, context)
        total = outputs.log_prob.sum() + outputs.value.sum()
        return torch.autograd.grad(total, parameters, allow_unused=True)

    return step


def _times(step: Callable[[], object], numbers: tuple[int, int]) -> list[float]:
    """Seconds per step with either number of threads: the best of several rounds, alternating."""
    found = [float("inf")] * len(numbers)
    for round_number in range(ROUNDS + 1):
        for at, threads in enumerate(numbers):
            with torch_threads(threads):
                seconds = _time(step)
            if round_number:  # the first one warms up
                found[at] = min(found[at], seconds)
    return found


def _time(step: Callable[[], object]) -> float:
    start, count = perf_counter(), 0
    while not count or perf_counter() - start < SECONDS:
        step()
        count += 1
    return (perf_counter() - start) / count
