"""Whether an update may stand, by its metrics."""

from __future__ import annotations

import math

from surefoot.errors import NonFiniteError, SurefootError

RATIO_TOLERANCE = 1e-3  # above rounding, also that of a GPU: a broken invariant (dropout, a drifting normaliser)


def checked(metrics: dict[str, float], learning_rate: float, tolerance: float = RATIO_TOLERANCE) -> dict[str, float]:
    """Return the metrics, or raise if they show that the update must be rejected."""
    broken = [name for name, x in metrics.items() if not math.isfinite(x)]
    if not metrics.pop("parameters_finite"):
        broken.append("the parameters")
    if broken:
        raise NonFiniteError(
            f"the update gave values that are not finite ({', '.join(broken)}); it was rejected and the weights "
            f"are as before it. learning_rate={learning_rate:g} may be too high, or rewards too large "
            "(try --normalize-rewards or a smaller --reward-scale)"
        )
    if metrics.get("ratio_error", 0.0) > tolerance:
        raise SurefootError(
            f"the policy disagrees with itself: the update's first ratio is off by {metrics['ratio_error']:.2g} "
            "(it must be 1). Something in it changes between rollout and update: dropout, batch statistics, noise; "
            "or a GPU rounds its products (torch.set_float32_matmul_precision other than highest)"
        )
    return metrics
