"""Checks of a trained critic on chains of four states, where each mistake at an episode's end has a V of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from surefoot.conformance.adapter import Adapter, Request
from surefoot.conformance.finding import Check, Finding, Mistake, as_array, recognise

if TYPE_CHECKING:
    from surefoot.types import Array

GAMMA, STEPS, SEED = 0.8, 4096, 1
TOLERANCE = 0.15  # allowed error of V after training; the values of different mistakes are much further apart
STATES = 4
REWARDS, ONES = (-1.0, 1.5, 0.0, 0.5), (1.0, 1.0, 1.0, 1.0)  # those of `tasks.py`
Future = Literal["none", "final", "last", "reset"]  # what V(3) is bootstrapped from
CUT: dict[Future, str] = {
    "none": "Truncation is treated as termination: the last step before a time limit gets no future.",
    "last": "At a time limit it bootstraps from V(s_t), the state before, not from V of the final observation.",
    "reset": "At a time limit it bootstraps from the first observation of the next episode, not from the final one.",
}
ENDED: dict[Future, str] = {
    "final": "It bootstraps past terminal states: the last step before a true end gets V of the final observation.",
    "last": "It bootstraps past terminal states, from V(s_t), the state before.",
    "reset": "It bootstraps past terminal states, from the first observation of the next episode.",
}
FAKE = (
    "The fake step of NEXT_STEP autoreset (reward 0, from the final observation to the reset) is learned from as if it "
    "were a transition."
)
UNKNOWN = "No known mistake gives these values. Perhaps the critic was not trained long enough to settle."


def fixed_point(rewards: tuple[float, ...], future: Future, *, fake: bool = False) -> Array:
    """V of the states 0 to 3 by the equations V = r + γ·V(next), which TD learning solves.

    `fake`: state 1 is also the start of a fake step to state 0 without a reward, once for each real visit.
    """
    after = np.zeros((STATES, STATES))
    after[0, 1] = after[1, 2] = after[2, 3] = 1.0
    if future != "none":
        after[3, {"final": 1, "last": 3, "reset": 0}[future]] = 1.0
    reward = np.array(rewards)
    if fake:
        after[1], reward[1] = [0.5, 0.0, 0.5, 0.0], reward[1] / 2
    return np.linalg.solve(np.eye(STATES) - GAMMA * after, reward)


def _values(
    check: Check,
    adapter: Adapter,
    *,
    task: str,
    rewards: tuple[float, ...],
    right: Future,
    wrong: dict[Future, str],
    gae_lambda: float,
) -> Finding:
    vector = check.function == "vector_values"
    request: Request = {
        "function": check.function,
        "task": task,
        "arrays": [np.eye(STATES).tolist()],
        "options": {"steps": STEPS, "gamma": GAMMA, "gae_lambda": gae_lambda, "seed": SEED},
    }
    found, expected = as_array(adapter.ask(request), (STATES,)), fixed_point(rewards, right)
    mistakes = [Mistake(means, fixed_point(rewards, future)) for future, means in wrong.items()]
    if vector:
        mistakes.append(Mistake(FAKE, fixed_point(rewards, right, fake=True)))
        mistakes += [
            Mistake(f"{FAKE} {means}", fixed_point(rewards, future, fake=True)) for future, means in wrong.items()
        ]
    passed = bool(np.abs(found - expected).max() <= TOLERANCE)
    means = "" if passed else recognise(found, expected, mistakes, TOLERANCE) or UNKNOWN
    return Finding(check.name, "passed" if passed else "failed", _shown(expected), _shown(found), means)


def _shown(values: Array) -> str:
    return "V = " + " ".join(f"{value:.2f}" for value in values)


CHECKS = (
    Check(
        "truncation",
        "values",
        "reward 1 in every step and a time limit: V = 1/(1 − γ)",
        partial(_values, task="Steady", rewards=ONES, right="final", wrong=CUT, gae_lambda=0.95),
    ),
    Check(
        "final-observation",
        "values",
        "at a time limit the future is V of the final observation",
        partial(_values, task="Cut", rewards=REWARDS, right="final", wrong=CUT, gae_lambda=0.95),
    ),
    Check(
        "termination",
        "values",
        "a true end has no future: V is a finite sum",
        partial(_values, task="Ended", rewards=REWARDS, right="none", wrong=ENDED, gae_lambda=0.95),
    ),
    Check(
        "both-ends",
        "values",
        "a true end in the step in which the clock runs out is still a true end",
        partial(_values, task="Both", rewards=REWARDS, right="none", wrong=ENDED, gae_lambda=0.95),
    ),
    Check(
        "autoreset",
        "vector_values",
        "the fake step of a Gymnasium vector env (NEXT_STEP autoreset) does not enter V",
        partial(_values, task="Cut", rewards=REWARDS, right="final", wrong=CUT, gae_lambda=0.0),
    ),
)
