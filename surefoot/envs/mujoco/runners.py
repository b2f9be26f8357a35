"""HalfCheetah, Swimmer, Hopper, Walker2d, Ant, Humanoid and HumanoidStandup of Gymnasium, v5.

Operations and their types follow Gymnasium's, so that every bit is the same: actions are squared and summed in float32,
for example. The docstrings there explain the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.envs.mujoco.v5 import Arguments, Range, V5Task, joined, noise, sum_of_squares, within

if TYPE_CHECKING:
    from surefoot.types import Array, Info


class Runner(V5Task):
    """Moves forward; the first `hidden` coordinates are not observed unless asked for."""

    hidden = 1
    normal_velocities = False  # how the noise of the first velocities is distributed

    def read(self, arguments: Arguments) -> None:
        self.reset_noise_scale = arguments.number("reset_noise_scale")
        self.ctrl_cost_weight = arguments.number("ctrl_cost_weight")
        self.skip = self.hidden if arguments.flag("exclude_current_positions_from_observation") else 0

    def prepare(self) -> None:
        self.both = self.sims.positions_and_velocities
        self.seen = self.both[:, self.skip :]
        self.x = self.qpos[:, 0]
        self.x_before = np.empty(self.num_envs)

    def start(self, env: int, rng: np.random.Generator) -> tuple[Array, Array]:
        model, scale = self.model, self.reset_noise_scale
        qpos = model.qpos0 + noise(rng, scale, model.nq)
        velocity = scale * rng.standard_normal(model.nv) if self.normal_velocities else noise(rng, scale, model.nv)
        return qpos, 0.0 + velocity  # no −0, as in Gymnasium's sum

    def before_step(self) -> None:
        self.x_before[...] = self.x

    def observe(self) -> Array:
        return self.seen

    def velocity(self) -> Array:
        velocity: Array = (self.x - self.x_before) / self.step_seconds
        return velocity


class HalfCheetah(Runner):
    normal_velocities = True

    def read(self, arguments: Arguments) -> None:
        super().read(arguments)
        self.forward_reward_weight = arguments.number("forward_reward_weight")

    def reward(self, action: Array) -> Array:
        velocity = self.velocity()
        forward, cost = self.forward_reward_weight * velocity, self.ctrl_cost_weight * sum_of_squares(action)
        self.gains = {"x_velocity": velocity, "reward_forward": forward}
        self.costs = {"reward_ctrl": cost}
        return forward - cost

    def info(self, env: int) -> Info:
        return {"x_position": self.x[env], **super().info(env)}


class Swimmer(HalfCheetah):
    hidden = 2
    normal_velocities = False

    def prepare(self) -> None:
        super().prepare()
        self.xy = self.qpos[:, :2]
        self.xy_before = np.empty((self.num_envs, 2))
        self.x_before = self.xy_before[:, 0]

    def before_step(self) -> None:
        self.xy_before[...] = self.xy

    def info(self, env: int) -> Info:
        y = self.xy[env, 1]
        y_velocity = (y - self.xy_before[env, 1]) / self.step_seconds
        distance = np.linalg.norm(self.xy[env].copy(), ord=2)
        return {**super().info(env), "y_position": y, "distance_from_origin": distance, "y_velocity": y_velocity}


class Living(Runner):
    """Is paid for being healthy, and its episode may end when it is not."""

    def read(self, arguments: Arguments) -> None:
        super().read(arguments)
        self.forward_reward_weight = arguments.number("forward_reward_weight")
        self.healthy_reward = arguments.number("healthy_reward")
        self.terminate_when_unhealthy = arguments.flag("terminate_when_unhealthy")
        self.healthy_z_range = arguments.range("healthy_z_range")

    def survive(self, healthy: Array) -> Array:
        """The reward for being healthy."""
        self.unhealthy: Array = ~healthy
        reward: Array = healthy * self.healthy_reward
        return reward

    def terminated(self) -> Array | None:
        return self.unhealthy if self.terminate_when_unhealthy else None


class Walker2d(Living):
    def read(self, arguments: Arguments) -> None:
        super().read(arguments)
        self.healthy_angle_range = arguments.range("healthy_angle_range")

    def prepare(self) -> None:
        super().prepare()
        self.z, self.positions = self.qpos[:, 1], self.qpos[:, self.skip :]
        self.buffer = joined([self.positions, self.qvel])
        self.seen_positions, self.seen_velocities = np.split(self.buffer, [self.positions.shape[1]], axis=1)
        self.fastest, self.slowest = np.full(self.qvel.shape, 10.0), np.full(self.qvel.shape, -10.0)
        self.bounded, self.low, self.high = self.bounds(self.healthy_z_range, self.healthy_angle_range)

    def bounds(self, *ranges: Range) -> tuple[Array, Array, Array]:
        """The coordinates after x, and their bounds in a healthy state, each `[N, number of ranges]`."""
        low, high = (np.tile(np.array(ends, np.float64), (self.num_envs, 1)) for ends in zip(*ranges, strict=True))
        return self.both[:, 1 : 1 + len(ranges)], low, high

    def observe(self) -> Array:
        self.seen_positions[...] = self.positions
        np.maximum(self.qvel, self.slowest, out=self.seen_velocities)
        np.minimum(self.seen_velocities, self.fastest, out=self.seen_velocities)
        return self.buffer

    def is_healthy(self) -> Array:
        inside: Array = np.logical_and.reduce((self.low < self.bounded) & (self.bounded < self.high), axis=1)
        return inside

    def reward(self, action: Array) -> Array:
        velocity, survive = self.velocity(), self.survive(self.is_healthy())
        forward, cost = self.forward_reward_weight * velocity, self.ctrl_cost_weight * sum_of_squares(action)
        self.gains = {"x_velocity": velocity, "reward_forward": forward, "reward_survive": survive}
        self.costs = {"reward_ctrl": cost}
        return forward + survive - cost

    def info(self, env: int) -> Info:
        height = self.z[env] - self.model.qpos0[1]
        return {"x_position": self.x[env], "z_distance_from_origin": height, **super().info(env)}


class Hopper(Walker2d):
    def read(self, arguments: Arguments) -> None:
        super().read(arguments)
        self.healthy_state_range = arguments.range("healthy_state_range")

    def prepare(self) -> None:
        super().prepare()
        (low, high), (angle_low, angle_high) = self.healthy_state_range, self.healthy_angle_range
        angle = max(low, angle_low), min(high, angle_high)  # the angle is part of the state
        others = [self.healthy_state_range] * (self.both.shape[1] - 3)
        self.bounded, self.low, self.high = self.bounds(self.healthy_z_range, angle, *others)


class Ant(Living):
    hidden = 2
    normal_velocities = True
    contact_forces = True

    def read(self, arguments: Arguments) -> None:
        super().read(arguments)
        self.contact_cost_weight = arguments.number("contact_cost_weight")
        self.contact_force_range = arguments.range("contact_force_range")
        self.main_body = arguments.body("main_body")
        self.include_forces = arguments.flag("include_cfrc_ext_in_observation")

    def prepare(self) -> None:
        super().prepare()
        self.z, self.xy = self.both[:, 2], self.sims.field("xpos")[:, self.model.body(self.main_body).id, :2]
        self.xy_before = np.empty((self.num_envs, 2))
        self.raw_forces = self.sims.flat("cfrc_ext")
        self.forces = np.empty(self.raw_forces.shape)
        self.seen_parts = [self.seen, *([self.forces[:, 6:]] if self.include_forces else [])]  # not those of the world
        self.buffer = joined(self.seen_parts)

    def before_step(self) -> None:
        self.xy_before[...] = self.xy

    def observe(self) -> Array:
        self.raw_forces.clip(*self.contact_force_range, out=self.forces)
        return np.concatenate(self.seen_parts, axis=1, out=self.buffer)

    def reward(self, action: Array) -> Array:
        low, high = self.healthy_z_range
        z, finite = self.z, np.logical_and.reduce(np.isfinite(self.both), axis=1)
        survive = self.survive(finite & (low <= z) & (z <= high))
        self.xy_velocity: Array = (self.xy - self.xy_before) / self.step_seconds
        forward = self.xy_velocity[:, 0] * self.forward_reward_weight
        cost = self.ctrl_cost_weight * sum_of_squares(action)
        contact = self.contact_cost_weight * sum_of_squares(self.forces)
        self.gains = {"reward_forward": forward, "reward_survive": survive}
        self.costs = {"reward_ctrl": cost, "reward_contact": contact}
        total: Array = forward + survive - (cost + contact)
        return total

    def info(self, env: int) -> Info:
        x, y = self.qpos[env, :2]
        distance = np.linalg.norm(self.qpos[env, :2], ord=2)
        velocity = dict(zip(("x_velocity", "y_velocity"), self.xy_velocity[env], strict=True))
        return {"x_position": x, "y_position": y, "distance_from_origin": distance, **velocity, **super().info(env)}


class HumanoidStandup(Runner):
    hidden = 2
    contact_forces = True
    impact_weight, impact_range = "impact_cost_weight", "impact_cost_range"  # arguments

    def read(self, arguments: Arguments) -> None:
        super().read(arguments)
        self.impact_cost_weight = arguments.number(self.impact_weight)
        self.impact_cost_range = arguments.range(self.impact_range)
        self.included = [
            (name, first)
            for name, first in (("cinert", 10), ("cvel", 6), ("qfrc_actuator", 6), ("cfrc_ext", 6))
            if arguments.flag(f"include_{name}_in_observation")
        ]

    def prepare(self) -> None:
        super().prepare()
        self.z = self.qpos[:, 2]
        self.forces = self.sims.flat("cfrc_ext")
        # Without the world's, and without the forces on the torso's free joint.
        self.seen_parts = [self.seen, *(self.sims.flat(name)[:, first:] for name, first in self.included)]
        self.buffer = joined(self.seen_parts)
        self.tendons = self.sims.field("ten_length"), self.sims.field("ten_velocity")

    def observe(self) -> Array:
        return np.concatenate(self.seen_parts, axis=1, out=self.buffer)

    def efforts(self) -> tuple[Array, Array]:
        """The costs of (control, impacts)."""
        control = self.ctrl_cost_weight * sum_of_squares(self.sims.ctrl)
        impact = self.impact_cost_weight * sum_of_squares(self.forces)
        return control, impact.clip(*self.impact_cost_range)

    def reward(self, action: Array) -> Array:
        up, (control, impact) = self.z / self.model.opt.timestep, self.efforts()
        self.gains, self.costs = {"reward_linup": up}, {"reward_quadctrl": control, "reward_impact": impact}
        total: Array = up - control - impact + 1
        return total

    def info(self, env: int) -> Info:
        return {
            **self.where(env),
            "z_distance_from_origin": self.z[env] - self.model.qpos0[2],
            **super().info(env),
        }

    def where(self, env: int) -> Info:
        x, y = self.qpos[env, :2]
        length, velocity = (tendon[env].copy() for tendon in self.tendons)
        return {"x_position": x, "y_position": y, "tendon_length": length, "tendon_velocity": velocity}


class Humanoid(Living, HumanoidStandup):
    impact_weight, impact_range = "contact_cost_weight", "contact_cost_range"

    def prepare(self) -> None:
        super().prepare()
        self.body_positions, self.body_mass = self.sims.field("xipos"), self.model.body_mass
        self.mass = self.body_mass.sum()

    def centre(self) -> Array:
        """The centres of mass, `[N, 2]`."""
        total = np.einsum("b,nbj->nj", self.body_mass, self.body_positions)
        centres: Array = (total / self.mass)[:, :2]
        return centres

    def before_step(self) -> None:
        self.before = self.centre()

    def reward(self, action: Array) -> Array:
        survive, (control, impact) = self.survive(within(self.z, self.healthy_z_range)), self.efforts()
        self.xy_velocity: Array = (self.centre() - self.before) / self.step_seconds
        forward = self.forward_reward_weight * self.xy_velocity[:, 0]
        self.gains = {"reward_survive": survive, "reward_forward": forward}
        self.costs = {"reward_ctrl": control, "reward_contact": impact}
        total: Array = forward + survive - (control + impact)
        return total

    def info(self, env: int) -> Info:
        distance = np.linalg.norm(self.qpos[env, :2], ord=2)
        velocity = dict(zip(("x_velocity", "y_velocity"), self.xy_velocity[env], strict=True))
        return {**self.where(env), "distance_from_origin": distance, **velocity, **V5Task.info(self, env)}
