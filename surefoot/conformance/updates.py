"""Checks of an update and of a run: the direction of the KL, the first ratio, resume."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import numpy as np

from surefoot.conformance.adapter import Adapter, AdapterError, Request
from surefoot.conformance.finding import Check, Finding, Mistake, as_array, recognise

if TYPE_CHECKING:
    from surefoot.types import Array

OLD, NEW = [[0.0, 0.0, 0.0], [1.0, -1.0, 0.0]], [[2.0, 0.0, -1.0], [1.0, 1.0, -2.0]]  # logits [B, A]
KL_SHARE = 0.02  # a KL may be estimated from samples
RATIO_TOLERANCE = 1e-3  # above rounding, also that of a GPU
BEFORE, AFTER, SEED = 512, 512, 1


def log_softmax(logits: list[list[float]]) -> Array:
    rows = np.array(logits)
    found: Array = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    return found


def kl_rows(old: Array, new: Array) -> Array:
    """KL(old‖new) = Σ_a p (log p − log q) of each row of log-probabilities."""
    found: Array = np.sum(np.exp(old) * (old - new), axis=-1)
    return found


def _kl(check: Check, adapter: Adapter) -> Finding:
    request: Request = {"function": "kl", "arrays": [OLD, NEW], "options": {}}
    found = as_array(adapter.ask(request), ())
    old, new = log_softmax(OLD), log_softmax(NEW)
    rows = kl_rows(old, new)
    expected, tolerance = rows.mean(), KL_SHARE * float(rows.mean())
    mistakes = [
        Mistake("It is KL(new‖old), the other direction.", kl_rows(new, old).mean()),
        Mistake("It is the sum over states, not the mean.", rows.sum()),
        Mistake("It has the wrong sign.", -expected),
        Mistake("It is averaged over actions, too.", expected / len(OLD[0])),
        Mistake("It is the mean difference of log-probabilities, not weighted by π.", (old - new).mean()),
    ]
    passed = bool(abs(found - expected) <= tolerance)
    means = "" if passed else recognise(found, expected, mistakes, tolerance) or "No known mistake gives this KL."
    return Finding(check.name, "passed" if passed else "failed", f"{expected:.4f}", f"{found:.4f}", means)


def _first_ratio(check: Check, adapter: Adapter) -> Finding:
    request: Request = {"function": "first_ratio", "task": "Walk", "arrays": [], "options": {"seed": SEED}}
    found = float(as_array(adapter.ask(request), ()))
    passed = 0.0 <= found <= RATIO_TOLERANCE
    means = (
        "Before the first gradient step the new policy is the old one, so every ratio is 1. Here the stored "
        "log-probabilities are not those of the policy that learns: dropout, a normaliser that was updated in "
        "between, actions that were clipped before they were stored, or rows in another order."
    )
    return Finding(
        check.name, "passed" if passed else "failed", "|ratio − 1| = 0", f"{found:.2g}", "" if passed else means
    )


def _resume(check: Check, adapter: Adapter) -> Finding:
    whole, resumed = _digests(adapter)
    if whole == resumed:
        return Finding(check.name, "passed", "the same weights", "the same weights")
    again, _ = _digests(adapter)
    means = (
        "Two runs with the same seed differ even without a resume, so training is not reproducible."
        if again != whole
        else "A run that was saved and loaded ends with other weights than one that was not interrupted. Something "
        "is not saved: the optimizer, a random generator, a normaliser, or the open episodes."
    )
    return Finding(check.name, "failed", "the same weights", "other weights", means)


def _digests(adapter: Adapter) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="surefoot-conformance-") as folder:
        request: Request = {
            "function": "resume",
            "task": "Walk",
            "arrays": [],
            "folder": folder,
            "options": {"before": BEFORE, "after": AFTER, "seed": SEED},
        }
        answer = adapter.ask(request)
    if not isinstance(answer, list) or len(answer) != 2 or not all(isinstance(text, str) for text in answer):
        raise AdapterError(f"resume must return two texts, the digests of both runs' weights, not {answer!r}")
    return answer[0], answer[1]


CHECKS = (
    Check("kl", "kl", "the KL is KL(old‖new), averaged over states", _kl),
    Check("first-ratio", "first_ratio", "every ratio of the first minibatch is 1", _first_ratio),
    Check("resume", "resume", "a resumed run ends with the weights of an uninterrupted one", _resume),
)
