"""Envs of our own that live on a device. They never wait for it, so that a whole rollout can be recorded.

Every episode's first state is a hash of the run's seed, the env's index and the step at which the episode begins. It
depends neither on the other envs nor on how many there are, and nothing has to be drawn in order.
"""

from __future__ import annotations

from copy import copy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from surefoot.envs.device_classic import DYNAMICS
from surefoot.envs.native_envs import classic_facts
from surefoot.envs.open_episodes import episodes_shape
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.schema import ArrayOf, Record, Shape, Whole
from surefoot.spaces.layout import Layout
from surefoot.types import TensorStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from surefoot.envs.config import EnvConfig
    from surefoot.kernels.fused_rollout import World
    from surefoot.types import Array, Restorable

CLOSE = 1e-5  # how close the kernel's steps must be to PyTorch's, in float32
NO_LIMIT = 2**60  # steps
GOLDEN = -7046029254386353131  # 2⁶⁴ / φ as a signed number: consecutive counters end up far apart


def mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: every bit of the int64 result depends on every bit of the input."""
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, as if there were no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniform(key: Tensor, counter: Tensor) -> Tensor:
    """Numbers of [0, 1) in float64, from keys and counters of int64."""
    return _shifted(mixed(key + counter * GOLDEN), 11).double() * 2.0**-53


def elsewhere_shape(envs: Restorable, num_envs: int, action: tuple[int, ...] | None) -> Shape:
    """The shape of the state that the same envs have on the host, or (for envs on the host) on a device."""
    if isinstance(envs, DeviceEnvs):
        return episodes_shape(num_envs, action)
    return _state_shape((num_envs, None))


def from_elsewhere(envs: Restorable, state: Mapping[str, object]) -> bool:
    """Whether a state was saved where envs like these ran on the host and these do not, or the other way round."""
    return ("clock" in state) != isinstance(envs, DeviceEnvs)


def _state_shape(shape: tuple[int | None, ...]) -> Shape:
    taken = ArrayOf(shape[:1], "int64", low=0.0)
    return Record(state=ArrayOf(shape, "float64"), taken=taken, clock=Whole(high=2**48))


class DeviceEnvs(TensorEnvs):
    """Classic control on a device: `TensorEnvs` with a simulator of our own, whose runs resume exactly."""

    exact_seeds = True

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int, device: torch.device) -> None:
        facts = classic_facts(config)
        kind, params, self.name = facts.kind, facts.params, facts.name
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.time_limit, self.render_modes = facts.time_limit, facts.render_modes
        self.num_envs, self.device, self.mode = num_envs, device, AutoresetMode.SAME_STEP
        self.kind = kind.name
        self.dynamics = DYNAMICS[kind.name](params)
        first = float(params.sutton_barto_reward) if kind.name == "CartPole" else params.g
        self._params = (float(first), float(params.goal_velocity))
        self.layout = Layout(self.observation_space)
        index = torch.arange(num_envs, dtype=torch.int64, device=device)
        self._keys = mixed(derive_seed(run_seed, "device episodes") + index * GOLDEN)[:, None]  # [N, 1]
        self._numbers = torch.arange(self.dynamics.num_state, dtype=torch.int64, device=device)  # [S]
        self._state = torch.zeros(num_envs, self.dynamics.num_state, dtype=torch.float64, device=device)
        self._taken = torch.zeros(num_envs, dtype=torch.int64, device=device)  # steps of the open episodes
        self._clock = torch.zeros((), dtype=torch.int64, device=device)  # steps so far, and resets of all
        self._everyone = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.fused = device.type == "cuda" and find_spec("triton") is not None and self._agrees()
        self.notes = (
            f"note: {self.name} is stepped on {device}: Gymnasium's equations, with episodes of their own seeds",
        )

    def __str__(self) -> str:
        return f"{self.name} on {self.device}"

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [self._state, self._taken, self._clock]

    def _fresh(self) -> Tensor:
        """The state of an episode that begins now, for every env."""
        counter = self._clock * self.dynamics.num_state + self._numbers
        return self.dynamics.begin(uniform(self._keys, counter))

    def reset(self) -> Any:
        with torch.no_grad():
            self._state.copy_(self._fresh())
            self._taken.zero_()
            self._clock.add_(1)
            return self.dynamics.observe(self._state)

    def step(self, action: Any, active: Any = None) -> Any:
        """Envs that are not `active` stay as they are."""
        if self.fused and active is None:
            return self._fused_step(action)
        with torch.no_grad():
            moves = self._everyone if active is None else active
            state, reward, terminated = self.dynamics.step(self._state, action)
            taken = self._taken + 1
            truncated = ~self._everyone if self.time_limit is None else taken >= self.time_limit
            if active is not None:
                state = torch.where(moves[:, None], state, self._state)
                taken = torch.where(moves, taken, self._taken)
                reward, terminated, truncated = reward * moves, terminated & moves, truncated & moves
            done = terminated | truncated
            final = self.dynamics.observe(state)
            self._state.copy_(torch.where(done[:, None], self._fresh(), state))
            self._taken.copy_(taken * ~done)
            self._clock.add_(1)
            obs = self.dynamics.observe(self._state)
        return TensorStep(obs, reward, terminated, truncated, moves, done, final, None, {})

    def _fused_step(self, action: Tensor) -> TensorStep:
        """The same as one kernel."""
        from surefoot.kernels.fused_classic import step

        limit = NO_LIMIT if self.time_limit is None else self.time_limit
        place = (self._state, self._taken, self._clock, self._keys)
        found = step(self.kind, *place, action.contiguous(), limit, self._params)
        self._clock.add_(1)
        flags = (found.terminated, found.truncated, self._everyone, found.done)
        return TensorStep(found.obs, found.reward, *flags, found.final_obs, None, {})

    def world(self) -> World:
        """What a kernel needs that plays whole rollouts."""
        from surefoot.kernels.fused_rollout import World

        limit, box = NO_LIMIT if self.time_limit is None else self.time_limit, self.action_space
        bounds = (float(box.low[0]), float(box.high[0])) if isinstance(box, spaces.Box) else (0.0, 0.0)
        place = (self._state, self._taken, self._clock, self._keys)
        return World(self.kind, *place, limit, self._params, bounds)

    def played(self, steps: int) -> None:
        """A kernel has played all envs for so many steps."""
        self._clock.add_(steps)

    def _agrees(self) -> bool:
        """Whether the kernel works here and steps as PyTorch does, from random states; nothing is left changed."""
        generator, before = torch.Generator(self.device).manual_seed(0), [tensor.clone() for tensor in self.tensors]
        numbers = torch.rand(self._state.shape, generator=generator, dtype=torch.float64, device=self.device)
        action = torch.zeros(self.num_envs, *self.action_space.shape or (), dtype=torch.float32, device=self.device)
        action = action if action.dim() > 1 else action.long()
        start, found = self.dynamics.begin(numbers), []
        try:
            for self.fused in (True, False):
                self._state.copy_(start)
                step = self.step(action)
                found.append(torch.cat([step.obs, step.final_obs, step.reward[:, None]], 1))
        except Exception:  # Triton compiles at run time: no compiler, an old GPU, a bug of its own
            return False
        finally:
            for tensor, old in zip(self.tensors, before, strict=True):
                tensor.copy_(old)
        return bool((found[0] - found[1]).abs().max() < CLOSE)

    @classmethod
    def side_by_side(cls, several: Sequence[DeviceEnvs]) -> DeviceEnvs:
        """The envs of several runs, those of one after those of another, each run with a clock of its own. Only a
        kernel can step them.
        """
        both = copy(several[0])
        both.num_envs = sum(envs.num_envs for envs in several)
        both._keys = torch.cat([envs._keys for envs in several])
        both._state = torch.cat([envs._state for envs in several])
        both._taken = torch.cat([envs._taken for envs in several])
        both._clock = torch.stack([envs._clock for envs in several])
        both._everyone = torch.cat([envs._everyone for envs in several])
        return both

    def odd_flags(self) -> None:
        """Nothing to do: our flags are flags."""

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        found: Array = self.dynamics.observe(self._state).cpu().numpy()
        return found

    def state_dict(self) -> dict[str, object]:
        return {"state": self._state.clone(), "taken": self._taken.clone(), "clock": int(self._clock)}

    def state_shape(self) -> Shape:
        return _state_shape(tuple(self._state.shape))

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """All envs can be restored."""
        own = cast("dict[str, Tensor]", state)
        self._state.copy_(own["state"])
        self._taken.copy_(own["taken"])
        self._clock.fill_(own["clock"])
        return []

    def close(self) -> None:
        """Nothing to do."""
