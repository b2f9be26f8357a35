"""Checks of GAE on a few numbers: every mistake at an episode's end has its own numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from surefoot.conformance.adapter import Adapter, Request
from surefoot.conformance.finding import Check, Finding, Mistake, as_array, recognise

if TYPE_CHECKING:
    from surefoot.types import Array

GAMMA, LAMBDAS = 0.9, (0.0, 0.95, 1.0)
TOLERANCE = 1e-4  # float32, and a good deal
UNKNOWN = "No known mistake gives these advantages."


@dataclass(frozen=True)
class Steps:
    """Five steps of two envs, `[T, N]`. `next_value` is V of the state that truly followed."""

    reward: Array
    value: Array
    next_value: Array
    terminated: Array
    truncated: Array

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated


def example(terminated: bool, truncated: bool) -> Steps:
    """Env 0 has an episode's end after its third step, env 1 after its second and after its last.

    Inside an episode `next_value` is the next row's `value`. At an end it is V of a final observation that is not
    among the rows, and after the last step V of a state that comes with the next rollout.
    """
    reward = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5], [-2.0, 1.0], [1.0, 4.0]])
    value = np.array([[2.0, 1.0], [1.0, 3.0], [4.0, -1.0], [0.5, 2.0], [-3.0, 1.5]])
    next_value = np.vstack([value[1:], [[2.5, 6.0]]])
    ends = np.zeros(reward.shape, np.bool_)
    if terminated or truncated:
        ends[2, 0] = ends[1, 1] = ends[4, 1] = True
        next_value[2, 0], next_value[1, 1] = 7.0, 5.0
    return Steps(reward, value, next_value, ends & terminated, ends & truncated)


def gae(
    steps: Steps,
    gae_lambda: float,
    *,
    has_future: Array | None = None,
    carries_on: Array | None = None,
    decay: float | None = None,
) -> Array:
    """Â_t = δ_t + γλ·Â_{t+1}, cut where an episode is over; the options are what goes wrong in practice."""
    future = ~steps.terminated if has_future is None else has_future
    carry = ~steps.done if carries_on is None else carries_on
    delta = steps.reward + GAMMA * np.where(future, steps.next_value, 0.0) - steps.value
    advantage, after = np.zeros_like(delta), np.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        after = delta[t] + (GAMMA * gae_lambda if decay is None else decay) * np.where(carry[t], after, 0.0)
        advantage[t] = after
    return advantage


def mistakes(steps: Steps) -> Iterator[tuple[str, Callable[[float], Array]]]:
    """What each mistake means, and the advantages that it gives for a λ."""
    always = np.ones(steps.done.shape, np.bool_)
    shifted = np.vstack([steps.value[1:], steps.next_value[-1:]])
    of_reset = replace(steps, next_value=shifted)
    of_last = replace(steps, next_value=np.where(steps.truncated, steps.value, steps.next_value))
    turned = Steps(*(np.ascontiguousarray(array.T) for array in vars(steps).values()))
    yield (
        "Truncation is treated as termination: the last step before a time limit gets no future.",
        partial(gae, steps, has_future=~steps.done),
    )
    yield "It bootstraps past terminal states.", partial(gae, steps, has_future=always)
    yield (
        "A step that is both terminated and truncated is taken for a truncation, though it is a true end.",
        partial(gae, steps, has_future=~steps.terminated | steps.truncated),
    )
    yield (
        "Advantages leak across truncation, from the next episode into the one before.",
        partial(gae, steps, carries_on=~steps.terminated),
    )
    yield (
        "Advantages leak across episode ends, from the next episode into the one before.",
        partial(gae, steps, carries_on=always),
    )
    yield (
        "Episode ends are ignored: it bootstraps past them, and advantages leak across them.",
        partial(gae, of_reset, has_future=always, carries_on=always),
    )
    yield (
        "At a time limit it bootstraps from the first state of the next episode, not from the final one.",
        partial(gae, of_reset),
    )
    yield (
        "At a time limit it bootstraps from V(s_t), the state before, not from V of the final observation.",
        partial(gae, of_last),
    )
    yield "λ is ignored: the sum decays with γ alone.", partial(gae, steps, decay=GAMMA)
    yield "γ is missing from the decay: the sum decays with λ alone.", lambda own: gae(steps, own, decay=own)
    yield "The recursion runs over the envs' axis instead of time.", lambda own: gae(turned, own).T
    yield "The advantages are normalised already.", lambda own: _standardized(gae(steps, own))
    yield "These are returns, Â + V, not advantages.", lambda own: gae(steps, own) + steps.value


def _standardized(x: Array) -> Array:
    found: Array = (x - x.mean()) / (x.std() + 1e-8)
    return found


def _advantages(check: Check, adapter: Adapter, *, terminated: bool, truncated: bool) -> Finding:
    steps = example(terminated, truncated)
    arrays = [array.tolist() for array in vars(steps).values()]
    found = []
    for own in LAMBDAS:
        request: Request = {
            "function": "advantages",
            "arrays": arrays,
            "options": {"gamma": GAMMA, "gae_lambda": own},
        }
        found.append(as_array(adapter.ask(request), steps.reward.shape))
    all_found, expected = np.stack(found), np.stack([gae(steps, own) for own in LAMBDAS])
    known = [Mistake(means, np.stack([wrong(own) for own in LAMBDAS])) for means, wrong in mistakes(steps)]
    difference = np.nan_to_num(np.abs(all_found - expected), nan=np.inf)
    passed = bool(difference.max() <= TOLERANCE)
    means = "" if passed else recognise(all_found, expected, known, TOLERANCE) or UNKNOWN
    worst, t, env = np.unravel_index(int(difference.argmax()), difference.shape) if not passed else (1, 0, 0)
    place = f"Â[{t}, {env}] = {expected[worst, t, env]:.4f}, λ = {LAMBDAS[worst]:g}"
    return Finding(check.name, "passed" if passed else "failed", place, f"{all_found[worst, t, env]:.4f}", means)


CHECKS = (
    Check("gae", "advantages", "GAE inside an episode", partial(_advantages, terminated=False, truncated=False)),
    Check(
        "gae-terminated",
        "advantages",
        "GAE at a true end: no future, and nothing of the next episode",
        partial(_advantages, terminated=True, truncated=False),
    ),
    Check(
        "gae-truncated",
        "advantages",
        "GAE at a time limit: V of the final observation, and nothing of the next episode",
        partial(_advantages, terminated=False, truncated=True),
    ),
    Check(
        "gae-both",
        "advantages",
        "GAE where a true end and a time limit coincide",
        partial(_advantages, terminated=True, truncated=True),
    ),
)
