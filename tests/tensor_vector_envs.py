"""Vector envs that return tensors: one around any of NumPy's, and one that never leaves its device."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch.utils._python_dispatch import TorchDispatchMode


def tensors(value):
    if isinstance(value, dict):
        return {key: tensors(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(tensors(part) for part in value)
    return torch.from_numpy(np.array(value))


def arrays(value):
    if isinstance(value, dict):
        return {key: arrays(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(arrays(part) for part in value)
    assert isinstance(value, torch.Tensor)
    return value.numpy()


class AsTensors(VectorEnv):
    """The same envs, in tensors."""

    def __init__(self, envs):
        self.envs, self.num_envs, self.metadata, self.spec = envs, envs.num_envs, envs.metadata, envs.spec
        self.single_observation_space, self.single_action_space = (
            envs.single_observation_space,
            envs.single_action_space,
        )
        self.observation_space, self.action_space = envs.observation_space, envs.action_space
        self.actions = []
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        if options is not None:
            mask = options["reset_mask"]
            assert isinstance(mask, torch.Tensor)
            if not mask.any():
                return self.last
            options = {"reset_mask": mask.numpy()}
        else:
            self.seeds.append(seed)
        obs, info = self.envs.reset(seed=seed, options=options)
        self.last = tensors(obs), self.info(info)
        return self.last

    def step(self, action):
        self.actions.append(action)
        obs, reward, terminated, truncated, info = self.envs.step(arrays(action))
        self.last = tensors(obs), self.info(info)
        return self.last[0], tensors(reward), tensors(terminated), tensors(truncated), self.last[1]

    def info(self, info):
        found = {}
        for key, value in info.items():
            if key == "final_obs":  # a batch; rows without an end hold nonsense
                space = self.single_observation_space
                rows = [np.full(space.shape, 99, space.dtype) if row is None else row for row in value]
                found[key] = tensors(np.stack(rows))
            elif key == "final_info":
                found[key] = self.info(value)
            elif isinstance(value, np.ndarray) and value.dtype != object:
                found[key] = tensors(value)
        return found

    def close(self, **kwargs):
        self.envs.close()


class Drift(VectorEnv):
    """A simulator that reuses its buffers: x moves by the action; an episode is cut after `length` steps, or ends.

    With `guard`, every look of the host at a tensor between a rollout's first and last step is an error.
    """

    def __init__(self, mode=AutoresetMode.SAME_STEP, num_envs=4, length=5, guard=None, memory_format=None):
        self.num_envs, self.length, self.guard = num_envs, length, guard
        self.metadata = {"autoreset_mode": mode}
        self.mode = mode
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.x, self.t = torch.zeros(num_envs), torch.arange(num_envs) % length
        self.obs, self.reward = torch.zeros(num_envs, 2), torch.zeros(num_envs)
        self.terminated, self.truncated = (torch.zeros(num_envs, dtype=torch.bool) for _ in range(2))
        self.ended = torch.zeros(num_envs, dtype=torch.bool)

    def observe(self):
        self.obs[:, 0], self.obs[:, 1] = self.x, self.t
        return self.obs

    def restart(self, where):
        self.x.masked_fill_(where, 0.0)
        self.t.masked_fill_(where, 0)

    def reset(self, *, seed=None, options=None):
        where = torch.ones(self.num_envs, dtype=torch.bool) if options is None else options["reset_mask"]
        self.restart(where)
        self.terminated.masked_fill_(where, False)
        self.truncated.masked_fill_(where, False)
        return self.observe(), {}

    def step(self, action):
        if self.guard is not None:
            self.guard.step()
        before = self.ended.clone() if self.mode is AutoresetMode.NEXT_STEP else torch.zeros_like(self.ended)
        self.x += torch.where(before, 0.0, action[:, 0])
        self.t += (~before).long()
        self.restart(before)
        self.reward.copy_(torch.where(before, 0.0, self.x))
        torch.ge(self.x.abs(), 2.0, out=self.terminated)
        torch.eq(self.t, self.length, out=self.truncated)
        self.ended = self.terminated | self.truncated
        info = {"height": self.x.clone()}
        self.observe()
        if self.mode is AutoresetMode.SAME_STEP:
            info = {"final_obs": self.obs.clone(), "final_info": info}
            self.restart(self.ended)
            self.observe()
        return self.obs, self.reward, self.terminated, self.truncated, info


class HostReads(Exception):
    pass


class Guard(TorchDispatchMode):
    """Forbids host reads from the first step of a rollout to its last."""

    READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique")

    def __init__(self, length, monkeypatch):
        super().__init__()
        self.length, self.count, self.active, self.rollouts = length, 0, False, 0
        for name in ("numpy", "cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__array__", "__index__"):
            self.forbid(monkeypatch, name)

    def forbid(self, monkeypatch, name):
        real = getattr(torch.Tensor, name)

        def guarded(tensor, *args, **kwargs):
            if self.active:
                raise HostReads(f"Tensor.{name}")
            return real(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, guarded)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        if name in self.READS:
            raise HostReads(name)
        if name == "_to_copy" and (kwargs or {}).get("device") not in (None, args[0].device):
            raise HostReads("a copy to another device")
        return func(*args, **(kwargs or {}))

    def step(self):
        self.count += 1
        if self.count == 1:
            self.active = True
            self.__enter__()
        if self.count == self.length:
            self.__exit__(None, None, None)
            self.active, self.count = False, 0
            self.rollouts += 1
