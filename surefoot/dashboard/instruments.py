"""The numbers that tell whether a step was too large, in the order in which the page shows them, and healthy ranges."""

from __future__ import annotations

from collections.abc import Iterable

INSTRUMENTS = (
    "kl", "kl_p95", "kl_max", "approx_kl", "clip_fraction", "ratio_error", "explained_variance", "entropy", "grad_norm",
    "value_loss", "policy_loss", "predicted_gain", "surrogate_gain", "step_fraction", "kl_coef", "epochs",
    "action_clip_fraction", "learning_rate",
)  # fmt: skip
# (low, high), None: no bound. What lies outside deserves a look; `surefoot.dashboard` only shades it.
HEALTHY: dict[str, tuple[float | None, float | None]] = {
    "clip_fraction": (0.0, 0.3),
    "explained_variance": (0.0, 1.0),
    "action_clip_fraction": (0.0, 0.5),
    "ratio_error": (0.0, 1e-3),
}


def described(names: Iterable[str]) -> list[dict[str, object]]:
    """Every metric: whether it is an instrument, and its healthy range where one is known."""
    order = {name: index for index, name in enumerate(INSTRUMENTS)}
    known = sorted(names, key=lambda name: (order.get(name, len(order)), name))
    return [{"name": name, "instrument": name in order, "healthy": HEALTHY.get(name)} for name in known]
