"""All steps of a rollout of classic control, policy and envs together, as one Triton kernel. Import it late.

A program plays some envs from the first step to the last; their states stay in registers. The reference is
`collecting.stepping.step_all` with `envs/device_envs.py`, with the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from surefoot.kernels.agents import stride_of
from surefoot.kernels.fused_classic import KINDS, NUM_OBS, _begin, _moved, _uniform
from surefoot.kernels.fused_nets import (
    CATEGORICAL,
    GAUSSIAN,
    NEVER,
    ROWS,
    Net,
    _forwards,
    _load_log_std,
    _load_net,
    sizes_of,
)
from surefoot.kernels.fused_products import _parts

PLAY = {"num_warps": 2, "num_stages": 1}
MANY = 8192  # envs, of which a program plays twice as many: the GPU is full anyway


@triton.jit
def _seen(a, b, c, d, KIND: tl.constexpr):
    """The numbers that an env shows, in float32; those it does not have are of no use."""
    s0, s1, s2, s3, s4, s5 = a, b, c, d, c, d
    if KIND == 1:
        s0, s1, s2 = tl.cos(a), tl.sin(a), b
    if KIND == 2:
        s0, s1, s2, s3 = tl.cos(a), tl.sin(a), tl.cos(b), tl.sin(b)
    return (
        s0.to(tl.float32),
        s1.to(tl.float32),
        s2.to(tl.float32),
        s3.to(tl.float32),
        s4.to(tl.float32),
        s5.to(tl.float32),
    )


@triton.jit
def _row(s0, s1, s2, s3, s4, s5, D: tl.constexpr, BD: tl.constexpr):
    """These numbers as columns, `[BM, BD]`."""
    d = tl.arange(0, BD)[None, :]
    x = tl.where(d == 0, s0[:, None], tl.where(d == 1, s1[:, None], 0.0))
    if D > 2:
        x = tl.where(d == 2, s2[:, None], x)
    if D > 3:
        x = tl.where(d == 3, s3[:, None], x)
    if D > 4:
        x = tl.where(d == 4, s4[:, None], tl.where(d == 5, s5[:, None], x))
    return x


@triton.jit
def _scaled(x, shift_at, scale_at, at: tl.constexpr, D: tl.constexpr):
    """The normalised observation: the same arithmetic as `ObservationNormalizer`."""
    if at < D:
        x = (x - tl.load(shift_at + at)) * tl.load(scale_at + at)
        x = tl.minimum(tl.maximum(x, -10.0), 10.0)
    return x


@triton.jit
def _all_scaled(s0, s1, s2, s3, s4, s5, shift_at, scale_at, D: tl.constexpr):
    return (
        _scaled(s0, shift_at, scale_at, 0, D),
        _scaled(s1, shift_at, scale_at, 1, D),
        _scaled(s2, shift_at, scale_at, 2, D),
        _scaled(s3, shift_at, scale_at, 3, D),
        _scaled(s4, shift_at, scale_at, 4, D),
        _scaled(s5, shift_at, scale_at, 5, D),
    )


@triton.jit
def _sum_of(s0, s1, s2, s3, s4, s5, D: tl.constexpr):
    """The sum of all numbers that an env shows: it is not finite if one of them is not."""
    total = s0 + s1
    if D > 2:
        total += s2
    if D > 3:
        total += s3
    if D > 4:
        total += s4 + s5
    return total


@triton.jit
def _drawn(out, log_std, noise, A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr):
    """The action as one float64 per env, before any clipping."""
    o = tl.arange(0, BO)[None, :]
    if HEAD == CATEGORICAL:
        best = tl.argmax(tl.where(o < A, out + noise, NEVER), 1)
        found = best.to(tl.float64)
    else:
        drawn = out + tl.exp(log_std) * noise
        found = tl.sum(tl.where(o == 0, drawn, 0.0), 1).to(tl.float64)
    return found


@triton.jit
def _load_state(at, inside, S: tl.constexpr):
    a, b = tl.load(at, mask=inside, other=0.0), tl.load(at + 1, mask=inside, other=0.0)
    c, d = a * 0.0, a * 0.0
    if S == 4:
        c, d = tl.load(at + 2, mask=inside, other=0.0), tl.load(at + 3, mask=inside, other=0.0)
    return a, b, c, d


@triton.jit
def _store_state(at, inside, a, b, c, d, S: tl.constexpr):
    tl.store(at, a, mask=inside)
    tl.store(at + 1, b, mask=inside)
    if S == 4:
        tl.store(at + 2, c, mask=inside)
        tl.store(at + 3, d, mask=inside)


@triton.jit
def _store_ends(over_at, cut_at, done_at, start_at, inside, over, cut, done):
    tl.store(over_at, over, mask=inside)
    tl.store(cut_at, cut, mask=inside)
    tl.store(done_at, done, mask=inside)
    tl.store(start_at, done, mask=inside)


@triton.jit
def _fresh(key, clock, S: tl.constexpr, KIND: tl.constexpr):
    """The state of an episode that begins at this step."""
    counter = key * 0 + clock * S
    u0, u1 = _uniform(key, counter), _uniform(key, counter + 1)
    u2, u3 = u0 * 0.0, u0 * 0.0
    if S == 4:
        u2, u3 = _uniform(key, counter + 2), _uniform(key, counter + 3)
    return _begin(u0, u1, u2, u3, KIND)


@triton.jit
def _store_action(
    params_at, action_at, at, inside, out, log_std, drawn, A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr
):  # fmt: skip
    o = tl.arange(0, BO)[None, :]
    known = inside[:, None] & (o < A)
    if HEAD == CATEGORICAL:
        tl.store(params_at + at[:, None] * A + o, out, mask=known)
        tl.store(action_at + at, drawn.to(tl.int64), mask=inside)
    else:
        tl.store(params_at + at[:, None] * (2 * A) + o, out, mask=known)
        tl.store(params_at + at[:, None] * (2 * A) + A + o, log_std + out * 0.0, mask=known)
        tl.store(action_at + at, drawn.to(tl.float32), mask=inside)


@triton.jit
def _store_last(final_at, last_at, some, shown, own):
    """The observation at each env's last truncation; without one, what it shows now."""
    tl.debug_barrier()  # other threads of this program stored the final observations
    last = tl.load(final_at, mask=own & some, other=0.0)
    tl.store(last_at, tl.where(some, last, shown), mask=own)


@triton.jit
def _play(
    theta, shift_at, scale_at, noise_at, state_at, taken_at, clock_at, keys_at,
    obs_at, action_at, params_at, reward_at, over_at, cut_at, done_at, start_at, final_at,
    last_at, when_at, fine_at,
    num_envs, limit, low, high, env_number, goal_velocity, T: tl.constexpr, KIND: tl.constexpr, S: tl.constexpr,
    STRIDE: tl.constexpr, LOG_STD: tl.constexpr,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, H2: tl.constexpr, A: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BH2: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr,
    HEAD: tl.constexpr, NORMALIZE: tl.constexpr, ACTIVATION: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    env = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = env < num_envs
    agent = tl.program_id(1)
    everyone = tl.num_programs(1).to(tl.int64) * num_envs  # the envs of all agents, of which there may be one
    env += agent * num_envs
    theta, clock_at = theta + agent * STRIDE, clock_at + agent
    shift_at, scale_at = shift_at + agent * D, scale_at + agent * D
    column, o = tl.arange(0, BD)[None, :], tl.arange(0, BO)[None, :]
    own = inside[:, None] & (column < D)
    w, b1, w2, b2, w3, b3 = _load_net(theta, F, D, H, H2, A, BD, BH, BH2, BO, P)
    log_std = _load_log_std(theta + LOG_STD, A, BO, HEAD)
    a, b, c, d = _load_state(state_at + env * S, inside, S)
    taken, key = tl.load(taken_at + env, mask=inside, other=0), tl.load(keys_at + env, mask=inside, other=0)
    clock = tl.load(clock_at)
    when, some, probe = env * 0 + (T - 1), env < 0, tl.zeros((BM,), tl.float32)
    for t in range(T):
        at = t * everyone + env
        s0, s1, s2, s3, s4, s5 = _seen(a, b, c, d, KIND)
        tl.store(obs_at + at[:, None] * D + column, _row(s0, s1, s2, s3, s4, s5, D, BD), mask=own)
        if NORMALIZE:
            s0, s1, s2, s3, s4, s5 = _all_scaled(s0, s1, s2, s3, s4, s5, shift_at, scale_at, D)
        x = _parts(_row(s0, s1, s2, s3, s4, s5, D, BD), P)
        _, _, _, _, out = _forwards(x, w, b1, w2, b2, w3, b3, H2, ACTIVATION, P)
        noise = tl.load(noise_at + at[:, None] * A + o, mask=inside[:, None] & (o < A), other=0.0)
        drawn = _drawn(out, log_std, noise, A, BO, HEAD)
        _store_action(params_at, action_at, at, inside, out, log_std, drawn, A, BO, HEAD)
        if HEAD == GAUSSIAN:
            drawn = tl.minimum(tl.maximum(drawn, low), high)
        a, b, c, d, reward, over = _moved(a, b, c, d, drawn, env_number, goal_velocity, KIND)
        cut = taken + 1 >= limit
        done = over | cut
        s0, s1, s2, s3, s4, s5 = _seen(a, b, c, d, KIND)
        tl.store(final_at + at[:, None] * D + column, _row(s0, s1, s2, s3, s4, s5, D, BD), mask=own & done[:, None])
        probe += _sum_of(s0, s1, s2, s3, s4, s5, D) + reward.to(tl.float32)
        end = cut & ~over
        when, some = tl.where(end, t, when), some | end
        e, f, g, k = _fresh(key, clock + t, S, KIND)
        a, b, c, d = tl.where(done, e, a), tl.where(done, f, b), tl.where(done, g, c), tl.where(done, k, d)
        taken = tl.where(done, 0, taken + 1)
        tl.store(reward_at + at, reward, mask=inside)
        _store_ends(over_at + at, cut_at + at, done_at + at, start_at + at + everyone, inside, over, cut, done)
    s0, s1, s2, s3, s4, s5 = _seen(a, b, c, d, KIND)
    shown = _row(s0, s1, s2, s3, s4, s5, D, BD)
    tl.store(obs_at + (T * everyone + env)[:, None] * D + column, shown, mask=own)
    when = when * everyone + env
    _store_last(final_at + when[:, None] * D + column, last_at + env[:, None] * D + column, some[:, None], shown, own)
    tl.store(when_at + env, when, mask=inside)
    tl.store(fine_at + env, probe - probe == 0.0, mask=inside)
    _store_state(state_at + env * S, inside, a, b, c, d, S)
    tl.store(taken_at + env, taken, mask=inside)


@dataclass(frozen=True)
class Ends:
    """How a rollout ended for each env."""

    final: Tensor  # [N, ...] the observation at the env's last truncation; without one, what it shows now
    index: Tensor  # [N] the step t·N + n of that truncation; without one, of the last step
    fine: Tensor  # [N] whether all that the env showed and paid was finite


@dataclass(frozen=True)
class Played:
    """Where a rollout goes, `[T, N, ...]` each; `obs` and `start` have one step more. N: envs of all agents."""

    obs: Tensor
    action: Tensor
    params: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    done: Tensor
    start: Tensor
    final: Tensor
    ends: Ends


@dataclass(frozen=True)
class World:
    """The envs: their kind, state and constants, as in `DeviceEnvs`. `bounds`: of the actions that they are sent."""

    kind: str
    state: Tensor
    taken: Tensor
    clock: Tensor  # one for each agent
    keys: Tensor
    limit: int
    params: tuple[float, float]
    bounds: tuple[float, float]


def play(
    theta: Tensor, net: Net, normalizer: tuple[Tensor, Tensor] | None, world: World, noise: Tensor, into: Played
) -> None:
    """Play as many steps as there is `noise` for, `[T, N, A]`. `normalizer`: shift and scale. Counts no clock.

    `theta` `[P]`, or `[agents, P]`: then each agent plays its own N/agents envs, the first agent the first of them, and
    has its own row of shifts and scales.
    """
    agents = len(theta) if theta.dim() == 2 else 1
    steps, num_envs = noise.shape[0], noise.shape[1] // agents
    kind, (shift, scale) = KINDS.index(world.kind), normalizer or (theta, theta)
    assert net.weights.inputs == NUM_OBS[world.kind]
    assert net.head == CATEGORICAL.value or (net.head == GAUSSIAN.value and net.weights.outputs == 1)
    envs, ends = ROWS if num_envs <= MANY else 2 * ROWS, into.ends
    _play[(triton.cdiv(num_envs, envs), agents)](
        theta, shift, scale, noise, world.state, world.taken, world.clock, world.keys,
        into.obs, into.action, into.params, into.reward, into.terminated, into.truncated, into.done, into.start,
        into.final, ends.final, ends.index, ends.fine,
        num_envs, world.limit, *world.bounds, *world.params, T=steps, KIND=kind, S=world.state.shape[1],
        STRIDE=stride_of(theta), LOG_STD=net.log_std, **sizes_of(net), BM=envs, HEAD=net.head,
        NORMALIZE=normalizer is not None, ACTIVATION=net.activation_code, **PLAY,
    )  # fmt: skip
