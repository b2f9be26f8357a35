"""MuJoCo models stepped in batches: Gymnasium's MuJoCo-v5 envs, and tasks of your own (docs/mujoco.md)."""

from surefoot.envs.mujoco.task import MujocoTask

__all__ = ["MujocoTask"]
