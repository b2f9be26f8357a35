"""One recurrence behind reward-to-go, TD(λ) and GAE.

    y_t = x_t + c_t · y_{t+1},    y_T = 0

Shapes: T steps, N envs; every argument is `[T, N]`. Nothing here imports torch: tensor methods suffice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Scan


def reverse_scan(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1}, backwards over time with y_T = 0. All `[T, N]`."""
    assert x.ndim == 2, f"expected [T, N], got {tuple(x.shape)}"
    assert x.shape == decay.shape, f"x {tuple(x.shape)} and decay {tuple(decay.shape)} differ"
    y = x.clone()
    rows, decays = y.unbind(0), decay.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(decays[t], rows[t + 1])
    return y


def reward_to_go(reward: Tensor, done: Tensor, gamma: float, scan: Scan | None = None) -> Tensor:
    """R_t = r_t + γ · ¬done_t · R_{t+1}: discounted reward from t to the end of its episode. `[T, N]`.

    An episode that is still open at T counts as if it ended there: collect whole episodes, or bootstrap with
    `gae(..., lambda_=1)`.
    """
    return (scan or reverse_scan)(reward, gamma * (~done).to(reward.dtype))


def td_error(reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, gamma: float | Tensor) -> Tensor:
    """δ_t = r_t + γ · V(s_{t+1}) · ¬terminated_t − V(s_t). A truncated state keeps its future. `[T, N]`.

    γ may be `[N]`.
    """
    assert reward.shape == value.shape == next_value.shape == terminated.shape, "arguments must all be [T, N]"
    # masked_fill rather than a product, because 0 · NaN is NaN.
    return reward + gamma * next_value.masked_fill(terminated, 0.0) - value


def gae(delta: Tensor, done: Tensor, gamma: float, lambda_: float, segment_length: int | None = None) -> Tensor:
    """Â_t = Σ_{l ≥ 0} (γλ)^l δ_{t+l}, cut at the end of an episode, of a segment and of the rollout. `[T, N]`.

    λ = 0 is the TD error; λ = 1 is the bootstrapped return minus V(s_t). (The sum's last exponent is T−t−1, at
    δ_{T−1}; the lecture's slide prints T−t+1.) `segment_length` cuts the recursion every so many steps, as the
    lecture's Pendulum program does with segments of 3; each segment's last δ still bootstraps.
    """
    decay = gamma * lambda_ * (~done).to(delta.dtype)
    if segment_length is not None:
        decay[segment_length - 1 :: segment_length] = 0.0
    return reverse_scan(delta, decay)
