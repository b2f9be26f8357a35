"""Reacher, Pusher, InvertedPendulum and InvertedDoublePendulum of Gymnasium, v5; see `runners.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.envs.mujoco.v5 import Arguments, V5Task, joined, noise, norms, sum_of_squares

if TYPE_CHECKING:
    from surefoot.types import Array, Info


class Reacher(V5Task):
    def read(self, arguments: Arguments) -> None:
        self.reward_dist_weight = arguments.number("reward_dist_weight")
        self.reward_control_weight = arguments.number("reward_control_weight")

    def prepare(self) -> None:
        positions = self.sims.field("xpos")
        self.tip, self.target = (positions[:, self.model.body(name).id] for name in ("fingertip", "target"))
        self.angles = self.qpos[:, :2]

    def start(self, env: int, rng: np.random.Generator) -> tuple[Array, Array]:
        qpos = noise(rng, 0.1, self.model.nq) + self.model.qpos0
        while True:
            goal = noise(rng, 0.2, 2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = noise(rng, 0.005, self.model.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def observe(self) -> Array:
        angles = self.angles.copy()  # sine and cosine of numbers side by side: others may take another path
        self.apart = self.tip - self.target
        parts = [np.cos(angles), np.sin(angles), self.qpos[:, 2:], self.qvel[:, :2], self.apart[:, :2]]
        return np.concatenate(parts, axis=1)

    def reward(self, action: Array) -> Array:
        distance = -norms(self.apart) * self.reward_dist_weight
        control = -sum_of_squares(action) * self.reward_control_weight
        self.gains = {"reward_dist": distance, "reward_ctrl": control}
        return distance + control


class Pusher(V5Task):
    def read(self, arguments: Arguments) -> None:
        self.reward_near_weight = arguments.number("reward_near_weight")
        self.reward_dist_weight = arguments.number("reward_dist_weight")
        self.reward_control_weight = arguments.number("reward_control_weight")

    def prepare(self) -> None:
        positions = self.sims.field("xpos")
        bodies = (positions[:, self.model.body(name).id] for name in ("tips_arm", "object", "goal"))
        self.tip, self.object, self.goal = bodies
        self.seen_parts = [self.qpos[:, :7], self.qvel[:, :7], self.tip, self.object, self.goal]
        self.buffer = joined(self.seen_parts)

    def start(self, env: int, rng: np.random.Generator) -> tuple[Array, Array]:
        qpos = self.model.qpos0.copy()
        while True:
            place = np.concatenate([rng.uniform(low=-0.3, high=0, size=1), rng.uniform(low=-0.2, high=0.2, size=1)])
            if np.linalg.norm(place) > 0.17:
                break
        qpos[-4:-2], qpos[-2:] = place, 0
        qvel = noise(rng, 0.005, self.model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def observe(self) -> Array:
        return np.concatenate(self.seen_parts, axis=1, out=self.buffer)

    def reward(self, action: Array) -> Array:
        near = -norms(self.object - self.tip) * self.reward_near_weight
        distance = -norms(self.object - self.goal) * self.reward_dist_weight
        control = -sum_of_squares(action) * self.reward_control_weight
        self.gains = {"reward_dist": distance, "reward_ctrl": control, "reward_near": near}
        return distance + control + near


class InvertedPendulum(V5Task):
    def read(self, arguments: Arguments) -> None:
        self.reset_noise_scale = arguments.number("reset_noise_scale")

    def prepare(self) -> None:
        self.both = self.sims.positions_and_velocities

    def start(self, env: int, rng: np.random.Generator) -> tuple[Array, Array]:
        model, scale = self.model, self.reset_noise_scale
        return model.qpos0 + noise(rng, scale, model.nq), 0.0 + noise(rng, scale, model.nv)

    def observe(self) -> Array:
        return self.both

    def reward(self, action: Array) -> Array:
        finite = np.logical_and.reduce(np.isfinite(self.both), axis=1)
        upright: Array = finite & (np.abs(self.both[:, 1]) <= 0.2)
        self.fallen: Array = ~upright
        return upright

    def terminated(self) -> Array:
        return self.fallen

    def info(self, env: int) -> Info:
        return {"reward_survive": int(not self.fallen[env])}


class InvertedDoublePendulum(V5Task):
    def read(self, arguments: Arguments) -> None:
        self.reset_noise_scale = arguments.number("reset_noise_scale")
        self.healthy_reward = arguments.number("healthy_reward")

    def prepare(self) -> None:
        self.tip, self.constraint = self.sims.field("site_xpos")[:, 0], self.sims.field("qfrc_constraint")
        self.x, self.angles, self.force = self.qpos[:, :1], self.qpos[:, 1:], self.constraint[:, :1]
        self.buffer = joined([self.x, self.angles, self.angles, self.qvel, self.force])
        first = 1 + 2 * self.angles.shape[1]
        self.clipped = self.buffer[:, first:]
        self.high, self.low = np.full(self.clipped.shape, 10.0), np.full(self.clipped.shape, -10.0)

    def start(self, env: int, rng: np.random.Generator) -> tuple[Array, Array]:
        model, scale = self.model, self.reset_noise_scale
        return model.qpos0 + noise(rng, scale, model.nq), 0.0 + rng.standard_normal(model.nv) * scale

    def observe(self) -> Array:
        angles = self.angles.copy()  # see Reacher
        parts = [self.x, np.sin(angles), np.cos(angles), self.qvel, self.force]
        np.concatenate(parts, axis=1, out=self.buffer)
        np.maximum(self.clipped, self.low, out=self.clipped)
        np.minimum(self.clipped, self.high, out=self.clipped)
        return self.buffer

    def reward(self, action: Array) -> Array:
        # Python's numbers, because the square of a NumPy scalar is `pow`, that of an array a product.
        distance, velocity = [], []
        for (x, _, y), (_, v1, v2) in zip(self.tip.tolist(), self.qvel[:, :3].tolist(), strict=True):
            distance.append(0.01 * x**2 + (y - 2) ** 2)
            velocity.append(1e-3 * v1**2 + 5e-3 * v2**2)
        self.fallen: Array = self.tip[:, 2] <= 1
        survive = self.healthy_reward * (~self.fallen).astype(np.int64)
        far, fast = np.array(distance), np.array(velocity)
        self.gains, self.costs = {"reward_survive": survive}, {"distance_penalty": far, "velocity_penalty": fast}
        total: Array = survive - far - fast
        return total

    def terminated(self) -> Array:
        return self.fallen
