"""Classic control in PyTorch, for any number of envs at once: Gymnasium's equations, constants and limits.

States are float64, as Gymnasium's are; results differ from its by rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from surefoot.kernels.classic import Params

Moved: TypeAlias = tuple[Tensor, Tensor, Tensor]  # state [N, S], reward [N], terminated [N]


class Dynamics(ABC):
    """One of the environments: where episodes begin, what a step does, what is seen."""

    num_state: ClassVar[int]

    def __init__(self, params: Params) -> None:
        self.params = params

    @abstractmethod
    def begin(self, uniform: Tensor) -> Tensor:
        """The states `[..., S]` that these numbers of [0, 1) `[..., S]` mean."""

    @abstractmethod
    def step(self, state: Tensor, action: Tensor) -> Moved:
        """`[N, S]` states and the env's own actions, `[N]` or `[N, 1]`."""

    def observe(self, state: Tensor) -> Tensor:
        return state.float()


class CartPole(Dynamics):
    """A pole on a cart that is pushed left or right."""

    num_state = 4

    def begin(self, uniform: Tensor) -> Tensor:
        return 0.1 * uniform - 0.05

    def step(self, state: Tensor, action: Tensor) -> Moved:
        position, velocity, angle, spin = state.unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        push = (20.0 * action - 10.0 + 0.05 * spin * spin * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        moved = state + 0.02 * torch.stack([velocity, pull, spin, turn], -1)
        terminated = (moved[:, 0].abs() > 2.4) | (moved[:, 2].abs() > 12 * 2 * math.pi / 360)
        reward = -terminated.to(state.dtype) if self.params.sutton_barto_reward else torch.ones_like(position)
        return moved, reward, terminated


class Pendulum(Dynamics):
    """A pendulum that is to be swung up and held."""

    num_state = 2

    def begin(self, uniform: Tensor) -> Tensor:
        angle, speed = (2.0 * uniform - 1.0).unbind(-1)
        return torch.stack([math.pi * angle, speed], -1)

    def step(self, state: Tensor, action: Tensor) -> Moved:
        angle, speed = state.unbind(-1)
        torque = action[:, 0].clamp(-2.0, 2.0).to(state.dtype)
        turned = torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
        cost = turned**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = (speed + (1.5 * self.params.g * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        moved = torch.stack([angle + speed * 0.05, speed], -1)
        return moved, -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), speed], -1).float()


class Acrobot(Dynamics):
    """Two links, of which the lower one is driven; the tip must rise above a line. Fourth-order Runge–Kutta."""

    num_state = 4

    def begin(self, uniform: Tensor) -> Tensor:
        return (0.2 * uniform - 0.1).float().to(uniform.dtype)

    def step(self, state: Tensor, action: Tensor) -> Moved:
        torque, dt = action.to(state.dtype) - 1.0, 0.2
        first = self._slope(state, torque)
        second = self._slope(state + 0.5 * dt * first, torque)
        third = self._slope(state + 0.5 * dt * second, torque)
        fourth = self._slope(state + dt * third, torque)
        upper, lower, upper_speed, lower_speed = (
            state + dt / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
        ).unbind(-1)
        most, upper, lower = math.pi, _wrapped(upper), _wrapped(lower)
        moved = torch.stack(
            [upper, lower, upper_speed.clamp(-4 * most, 4 * most), lower_speed.clamp(-9 * most, 9 * most)], -1
        )
        terminated = -upper.cos() - (lower + upper).cos() > 1.0
        return moved, -(~terminated).to(state.dtype), terminated

    @staticmethod
    def _slope(state: Tensor, torque: Tensor) -> Tensor:
        """Sutton & Barto's equations, with links of mass, length and inertia 1 and their centres in the middle."""
        upper, lower, upper_speed, lower_speed = state.unbind(-1)
        cos, sin, g = lower.cos(), lower.sin(), 9.8
        d1 = 0.25 + (1.25 + cos) + 2.0
        d2 = 0.25 + 0.5 * cos + 1.0
        phi2 = 0.5 * g * (upper + lower - math.pi / 2.0).cos()
        phi1 = (
            -0.5 * lower_speed**2 * sin
            - lower_speed * upper_speed * sin
            + 1.5 * g * (upper - math.pi / 2.0).cos()
            + phi2
        )
        faster = (torque + d2 / d1 * phi1 - 0.5 * upper_speed**2 * sin - phi2) / (1.25 - d2**2 / d1)
        return torch.stack([upper_speed, lower_speed, -(d2 * faster + phi1) / d1, faster], -1)

    def observe(self, state: Tensor) -> Tensor:
        upper, lower, upper_speed, lower_speed = state.unbind(-1)
        seen = [upper.cos(), upper.sin(), lower.cos(), lower.sin(), upper_speed, lower_speed]
        return torch.stack(seen, -1).float()


class MountainCar(Dynamics):
    """A car that is too weak for the hill in front of it."""

    num_state = 2
    goal = 0.5

    def begin(self, uniform: Tensor) -> Tensor:
        position = 0.2 * uniform[..., 0] - 0.6
        return torch.stack([position, torch.zeros_like(position)], -1)

    def step(self, state: Tensor, action: Tensor) -> Moved:
        moved, terminated = self._drive(state, (action.to(state.dtype) - 1.0) * 0.001)
        return moved, -torch.ones_like(moved[:, 0]), terminated

    def _drive(self, state: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
        position, velocity = state.unbind(-1)
        velocity = (velocity + force - 0.0025 * (3.0 * position).cos()).clamp(-0.07, 0.07)
        position = (position + velocity).clamp(-1.2, 0.6)
        velocity = velocity.masked_fill((position == -1.2) & (velocity < 0.0), 0.0)
        return torch.stack([position, velocity], -1), (position >= self.goal) & (velocity >= self.params.goal_velocity)


class MountainCarContinuous(MountainCar):
    """The same with a motor that can be dosed. Gymnasium keeps this state in float32."""

    goal = 0.45

    def step(self, state: Tensor, action: Tensor) -> Moved:
        wanted = action[:, 0].to(state.dtype)
        moved, terminated = self._drive(state, wanted.clamp(-1.0, 1.0) * 0.0015)
        reward = 100.0 * terminated.to(state.dtype) - 0.1 * wanted**2
        return moved.float().to(state.dtype), reward, terminated


def _wrapped(angle: Tensor) -> Tensor:
    """In [−π, π]."""
    turned = torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
    return torch.where(angle.abs() > math.pi, turned, angle)


DYNAMICS: dict[str, type[Dynamics]] = {  # by the names of `kernels.classic.KINDS`
    kind.__name__: kind for kind in (CartPole, Pendulum, Acrobot, MountainCar, MountainCarContinuous)
}
