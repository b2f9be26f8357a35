"""A step of classic control as one Triton kernel. `envs/device_classic.py` is the reference. Import it late.

One thread steps one env: dynamics, time limit, what is seen, and the next episode where one has ended.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # envs per program
KINDS = ("CartPole", "Pendulum", "Acrobot", "MountainCar", "MountainCarContinuous")  # in the kernel's order
NUM_OBS = {"CartPole": 4, "Pendulum": 3, "Acrobot": 6, "MountainCar": 2, "MountainCarContinuous": 2}
PI = tl.constexpr(3.141592653589793)


class Stepped(NamedTuple):
    """The step of every env, `[N]` and `[N, ...]`."""

    obs: Tensor
    final_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    done: Tensor


@triton.jit
def _uniform(key, counter):
    """SplitMix64, as in `envs/device_envs.py`."""
    x = key.to(tl.uint64, bitcast=True) + counter.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = x ^ (x >> 31)
    return (x >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _begin(u0, u1, u2, u3, KIND: tl.constexpr):
    a, b, c, d = u0 * 0.1 - 0.05, u1 * 0.1 - 0.05, u2 * 0.1 - 0.05, u3 * 0.1 - 0.05
    if KIND == 1:
        a, b = (2.0 * u0 - 1.0) * PI, 2.0 * u1 - 1.0
    if KIND == 2:
        a = (u0 * 0.2 - 0.1).to(tl.float32).to(tl.float64)
        b = (u1 * 0.2 - 0.1).to(tl.float32).to(tl.float64)
        c = (u2 * 0.2 - 0.1).to(tl.float32).to(tl.float64)
        d = (u3 * 0.2 - 0.1).to(tl.float32).to(tl.float64)
    if KIND >= 3:
        a, b = u0 * 0.2 - 0.6, u1 * 0.0
    return a, b, c, d


@triton.jit
def _wrapped(angle):
    turned = angle + PI
    turned = turned - tl.floor(turned / (2.0 * PI)) * (2.0 * PI) - PI
    return tl.where(tl.abs(angle) > PI, turned, angle)


@triton.jit
def _swing(a, b, c, d, torque):
    """The slopes of Acrobot's state."""
    cos, sin = tl.cos(b), tl.sin(b)
    d1 = 0.25 + (1.25 + cos) + 2.0
    d2 = 0.25 + 0.5 * cos + 1.0
    phi2 = 0.5 * 9.8 * tl.cos(a + b - PI / 2.0)
    phi1 = -0.5 * d * d * sin - d * c * sin + 1.5 * 9.8 * tl.cos(a - PI / 2.0) + phi2
    faster = (torque + d2 / d1 * phi1 - 0.5 * c * c * sin - phi2) / (1.25 - d2 * d2 / d1)
    return c, d, -(d2 * faster + phi1) / d1, faster


@triton.jit
def _acrobot(a, b, c, d, torque):
    a1, b1, c1, d1 = _swing(a, b, c, d, torque)
    a2, b2, c2, d2 = _swing(a + 0.1 * a1, b + 0.1 * b1, c + 0.1 * c1, d + 0.1 * d1, torque)
    a3, b3, c3, d3 = _swing(a + 0.1 * a2, b + 0.1 * b2, c + 0.1 * c2, d + 0.1 * d2, torque)
    a4, b4, c4, d4 = _swing(a + 0.2 * a3, b + 0.2 * b3, c + 0.2 * c3, d + 0.2 * d3, torque)
    a = _wrapped(a + (0.2 / 6.0) * (a1 + 2.0 * a2 + 2.0 * a3 + a4))
    b = _wrapped(b + (0.2 / 6.0) * (b1 + 2.0 * b2 + 2.0 * b3 + b4))
    c = tl.minimum(tl.maximum(c + (0.2 / 6.0) * (c1 + 2.0 * c2 + 2.0 * c3 + c4), -4.0 * PI), 4.0 * PI)
    d = tl.minimum(tl.maximum(d + (0.2 / 6.0) * (d1 + 2.0 * d2 + 2.0 * d3 + d4), -9.0 * PI), 9.0 * PI)
    return a, b, c, d


@triton.jit
def _moved(a, b, c, d, action, first, goal_velocity, KIND: tl.constexpr):
    """(state, reward, terminated). `first`: Pendulum's gravity, or whether CartPole pays by Sutton and Barto."""
    reward = a * 0.0 - 1.0
    over = a != a
    if KIND == 0:
        cos, sin = tl.cos(c), tl.sin(c)
        push = (20.0 * action - 10.0 + 0.05 * d * d * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        a, b, c, d = a + 0.02 * b, b + 0.02 * pull, c + 0.02 * d, d + 0.02 * turn
        over = (tl.abs(a) > 2.4) | (tl.abs(c) > 12.0 * 2.0 * PI / 360.0)
        reward = tl.where(first > 0.0, tl.where(over, -1.0, 0.0), reward + 2.0)
    if KIND == 1:
        torque = tl.minimum(tl.maximum(action, -2.0), 2.0)
        turned = a + PI
        turned = turned - tl.floor(turned / (2.0 * PI)) * (2.0 * PI) - PI
        reward = -(turned * turned + 0.1 * b * b + 0.001 * torque * torque)
        b = tl.minimum(tl.maximum(b + (1.5 * first * tl.sin(a) + 3.0 * torque) * 0.05, -8.0), 8.0)
        a = a + b * 0.05
    if KIND == 2:
        a, b, c, d = _acrobot(a, b, c, d, action - 1.0)
        over = -tl.cos(a) - tl.cos(b + a) > 1.0
        reward = tl.where(over, 0.0, -1.0)
    if KIND >= 3:
        force = (action - 1.0) * 0.001
        if KIND == 4:
            force = tl.minimum(tl.maximum(action, -1.0), 1.0) * 0.0015
        b = tl.minimum(tl.maximum(b + force - 0.0025 * tl.cos(3.0 * a), -0.07), 0.07)
        a = tl.minimum(tl.maximum(a + b, -1.2), 0.6)
        b = tl.where((a == -1.2) & (b < 0.0), 0.0, b)
        over = (a >= (0.45 if KIND == 4 else 0.5)) & (b >= goal_velocity)
        if KIND == 4:
            reward = tl.where(over, 100.0, 0.0) - 0.1 * action * action
            a, b = a.to(tl.float32).to(tl.float64), b.to(tl.float32).to(tl.float64)
    return a, b, c, d, reward, over


@triton.jit
def _show(at, env, inside, a, b, c, d, KIND: tl.constexpr, SEEN: tl.constexpr):
    at += env * SEEN
    if KIND == 1:
        tl.store(at, tl.cos(a).to(tl.float32), mask=inside)
        tl.store(at + 1, tl.sin(a).to(tl.float32), mask=inside)
        tl.store(at + 2, b.to(tl.float32), mask=inside)
    elif KIND == 2:
        tl.store(at, tl.cos(a).to(tl.float32), mask=inside)
        tl.store(at + 1, tl.sin(a).to(tl.float32), mask=inside)
        tl.store(at + 2, tl.cos(b).to(tl.float32), mask=inside)
        tl.store(at + 3, tl.sin(b).to(tl.float32), mask=inside)
        tl.store(at + 4, c.to(tl.float32), mask=inside)
        tl.store(at + 5, d.to(tl.float32), mask=inside)
    else:
        tl.store(at, a.to(tl.float32), mask=inside)
        tl.store(at + 1, b.to(tl.float32), mask=inside)
        if KIND == 0:
            tl.store(at + 2, c.to(tl.float32), mask=inside)
            tl.store(at + 3, d.to(tl.float32), mask=inside)


@triton.jit
def _step(
    state_at, taken_at, clock_at, keys_at, action_at, obs_at, final_at, reward_at, over_at, cut_at, done_at,
    num_envs, limit, first, goal_velocity, KIND: tl.constexpr, S: tl.constexpr, SEEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    env = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = env < num_envs
    at = state_at + env * S
    a, b = tl.load(at, mask=inside, other=0.0), tl.load(at + 1, mask=inside, other=0.0)
    c, d = a * 0.0, a * 0.0
    if S == 4:
        c, d = tl.load(at + 2, mask=inside, other=0.0), tl.load(at + 3, mask=inside, other=0.0)
    action = tl.load(action_at + env, mask=inside, other=0).to(tl.float64)
    a, b, c, d, reward, over = _moved(a, b, c, d, action, first, goal_velocity, KIND)
    taken = tl.load(taken_at + env, mask=inside, other=0) + 1
    cut = taken >= limit
    done = over | cut
    _show(final_at, env, inside, a, b, c, d, KIND, SEEN)
    key = tl.load(keys_at + env, mask=inside, other=0)
    counter = key * 0 + tl.load(clock_at) * S
    u2, u3 = a * 0.0, a * 0.0
    if S == 4:
        u2, u3 = _uniform(key, counter + 2), _uniform(key, counter + 3)
    e, f, g, h = _begin(_uniform(key, counter), _uniform(key, counter + 1), u2, u3, KIND)
    a, b, c, d = tl.where(done, e, a), tl.where(done, f, b), tl.where(done, g, c), tl.where(done, h, d)
    _show(obs_at, env, inside, a, b, c, d, KIND, SEEN)
    tl.store(at, a, mask=inside)
    tl.store(at + 1, b, mask=inside)
    if S == 4:
        tl.store(at + 2, c, mask=inside)
        tl.store(at + 3, d, mask=inside)
    tl.store(taken_at + env, tl.where(done, 0, taken), mask=inside)
    tl.store(reward_at + env, reward, mask=inside)
    tl.store(over_at + env, over, mask=inside)
    tl.store(cut_at + env, cut, mask=inside)
    tl.store(done_at + env, done, mask=inside)


def step(
    kind: str,
    state: Tensor,
    taken: Tensor,
    clock: Tensor,
    keys: Tensor,
    action: Tensor,
    limit: int,
    params: tuple[float, float],
) -> Stepped:
    """Step all envs; `state` `[N, S]`, `taken` and `keys` `[N]` and `clock` are as in `DeviceEnvs`. Counts no clock.

    `params`: Pendulum's gravity or whether CartPole pays by Sutton and Barto, and the cars' goal velocity.
    """
    size, shown, device = len(state), NUM_OBS[kind], state.device
    obs, final = (torch.empty((size, shown), dtype=torch.float32, device=device) for _ in range(2))
    reward = torch.empty(size, dtype=torch.float64, device=device)
    flags = [torch.empty(size, dtype=torch.bool, device=device) for _ in range(3)]
    _step[(triton.cdiv(size, BLOCK),)](
        state, taken, clock, keys, action, obs, final, reward, *flags, size, limit, *params,
        KIND=KINDS.index(kind), S=state.shape[1], SEEN=shown, BLOCK=BLOCK,
    )  # fmt: skip
    return Stepped(obs, final, reward, *flags)
