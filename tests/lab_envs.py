"""Stand-ins for Isaac Lab and mjlab, written to their contracts: what `step` and `reset` do, and in which order."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch


class ManagerBasedRLEnv(gym.Env):
    """Isaac Lab's: a `gym.Env` that is vectorised, resets within the step and observes after the reset.

    x moves by the action. An episode terminates beyond ±2 and times out after `episode_length_s`.
    """

    is_vector_env = True
    metadata = {"render_modes": [None, "human", "rgb_array"]}

    def __init__(self, num_envs=4, episode_length_s=1.0, is_finite_horizon=False, final=False):
        self.cfg = SimpleNamespace(is_finite_horizon=is_finite_horizon, episode_length_s=episode_length_s)
        self.num_envs, self.device, self.step_dt, self.final = num_envs, "cpu", 0.2, final
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.x, self.extras, self.seeds = torch.zeros(num_envs), {}, []
        self.obs_buf = {"policy": torch.zeros(num_envs, 1), "critic": torch.zeros(num_envs, 2)}
        self.single_observation_space = gym.spaces.Dict(
            {name: gym.spaces.Box(-np.inf, np.inf, part.shape[1:]) for name, part in self.obs_buf.items()}
        )
        self.single_action_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    @property
    def max_episode_length(self):
        return math.ceil(self.cfg.episode_length_s / self.step_dt)

    def observe(self):
        # Written into the same memory, as some tasks do.
        self.obs_buf["policy"][:, 0] = self.x
        self.obs_buf["critic"][:, 0], self.obs_buf["critic"][:, 1] = self.x, self.episode_length_buf
        return self.obs_buf

    def reset(self, seed=None, env_ids=None, options=None):
        if seed is not None:
            self.seeds.append(seed)
            torch.manual_seed(seed)
        self._reset_idx(torch.arange(self.num_envs) if env_ids is None else env_ids)
        return self.observe(), self.extras

    def _reset_idx(self, env_ids):
        self.x[env_ids] = torch.rand(len(env_ids))
        self.episode_length_buf[env_ids] = 0
        self.extras["log"] = {"Episode_Termination/time_out": 1}

    def simulate(self, action):
        assert action.shape == (self.num_envs, 1)
        self.x = self.x + action[:, 0]
        self.episode_length_buf += 1
        self.reset_terminated = self.x.abs() > 2
        self.reset_time_outs = self.episode_length_buf >= self.max_episode_length
        self.reward_buf = self.x.clone()

    def step(self, action):
        self.simulate(action)
        if self.final:
            self.extras["final_obs"] = {name: part.clone() for name, part in self.observe().items()}
        reset_env_ids = (self.reset_terminated | self.reset_time_outs).nonzero(as_tuple=False).squeeze(-1)
        if len(reset_env_ids) > 0:
            self._reset_idx(reset_env_ids)
        return self.observe(), self.reward_buf, self.reset_terminated, self.reset_time_outs, self.extras


@dataclass
class Box:
    """mjlab's own spaces are not Gymnasium's."""

    shape: tuple = ()
    low: float = -math.inf
    high: float = math.inf


@dataclass
class Dict:
    spaces: dict = field(default_factory=dict)


class ManagerBasedRlEnv:
    """mjlab's: the same as a plain class, with spaces of its own and resets that can be left to the caller."""

    is_vector_env = True

    def __init__(self, num_envs=4, auto_reset=True):
        self.lab = ManagerBasedRLEnv(num_envs)
        self.cfg = SimpleNamespace(is_finite_horizon=False, auto_reset=auto_reset)
        self.num_envs, self.device = num_envs, "cpu"
        self.single_observation_space = Dict({"actor": Box((1,)), "critic": Box((2,))})
        self.single_action_space = Box((1,))
        self._manual_reset_pending = torch.zeros(num_envs, dtype=torch.bool)
        self.resets = []

    @property
    def unwrapped(self):
        return self

    @property
    def max_episode_length(self):
        return self.lab.max_episode_length

    def named(self, obs):
        return {"actor": obs["policy"], "critic": obs["critic"]}

    def reset(self, *, seed=None, env_ids=None, options=None):
        obs, extras = self.lab.reset(seed, env_ids)
        self._manual_reset_pending[slice(None) if env_ids is None else env_ids] = False
        self.resets.append(None if env_ids is None else env_ids.tolist())
        return self.named(obs), extras

    def step(self, action):
        if self.cfg.auto_reset:
            obs, *rest = self.lab.step(action)
            return self.named(obs), *rest
        if self._manual_reset_pending.any():
            raise RuntimeError("must be reset via reset(env_ids=...) before calling step() again")
        lab = self.lab
        lab.simulate(action)
        self._manual_reset_pending |= lab.reset_terminated | lab.reset_time_outs
        return self.named(lab.observe()), lab.reward_buf, lab.reset_terminated, lab.reset_time_outs, lab.extras

    def close(self):
        self.closed = True
