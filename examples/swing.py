"""Swing a pole up and keep it there: a MuJoCo task of one's own, computed for all envs at once.

surefoot train examples/swing.py:Swing --num-envs 16 --total-steps 300k
"""

from __future__ import annotations

import numpy as np

from surefoot.envs.mujoco import MujocoTask


class Swing(MujocoTask):
    xml = """
    <mujoco>
      <option timestep="0.01" integrator="implicitfast"/>
      <worldbody>
        <light pos="0 -1 3"/>
        <body name="pole" pos="0 0 1">
          <joint name="hinge" axis="0 1 0" damping="0.05"/>
          <geom type="capsule" fromto="0 0 0 0 0 -0.6" size="0.03" mass="1"/>
          <site name="tip" pos="0 0 -0.6"/>
        </body>
      </worldbody>
      <actuator><motor joint="hinge" ctrlrange="-1 1" gear="2"/></actuator>
    </mujoco>
    """
    frame_skip = 4
    time_limit = 200

    def __init__(self, effort_cost=0.01):  # set with --env-kwargs '{"effort_cost": 0.1}'
        self.effort_cost = effort_cost

    def prepare(self):
        self.tip = self.sims.field("site_xpos")[:, self.model.site("tip").id]  # [N, 3], always current

    def start(self, env, rng):
        return rng.uniform(-0.5, 0.5, self.model.nq), np.zeros(self.model.nv)

    def observe(self):
        return np.concatenate([np.cos(self.qpos), np.sin(self.qpos), self.qvel], axis=1)

    def reward(self, action):
        self.height = self.tip[:, 2] - 1.0  # from −0.6, hanging, to 0.6
        return self.height - self.effort_cost * np.square(action).sum(axis=1)

    def info(self, env):
        return {"height": self.height[env]}
