"""Envs that break their contract in one named way: a Gymnasium env, a vector env (of arrays or of tensors), a world of
several agents. By file name they are `tests/odd_envs.py:Name`."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

AT = 3  # the step at which it happens
NAN = float("nan")
# fault -> what is returned instead of (obs, reward, terminated, truncated, info)
STEPS = {
    "step_four": lambda o, r, e, c, i: (o, r, e, i),
    "step_one": lambda o, r, e, c, i: o,
    "step_info_none": lambda o, r, e, c, i: (o, r, e, c, None),
    "terminated_none": lambda o, r, e, c, i: (o, r, None, c, i),
    "terminated_text": lambda o, r, e, c, i: (o, r, "False", c, i),
    "terminated_two": lambda o, r, e, c, i: (o, r, 2, c, i),
    "truncated_nan": lambda o, r, e, c, i: (o, r, e, NAN, i),
    "truncated_array": lambda o, r, e, c, i: (o, r, e, np.array([False, False]), i),
    "obs_complex": lambda o, r, e, c, i: (o * 1j, r, e, c, i),
    "obs_text": lambda o, r, e, c, i: (np.array(["1", "2"]), r, e, c, i),
    "reward_complex": lambda o, r, e, c, i: (o, r * 1j, e, c, i),
    "reward_none": lambda o, r, e, c, i: (o, None, e, c, i),
}
RESETS = {
    "reset_obs_only": lambda o, i: o,
    "reset_info_none": lambda o, i: (o, None),
    "reset_three": lambda o, i: (o, i, i),
}
# what every backend says of it, apart from the name of the env
SAID = {
    "step_four": "step of .* returned 4 values; it must return five values, .*Four are Gym's old API",
    "step_one": "step of .* returned one value .*; it must return five values",
    "step_info_none": "step of .* returned the info None; .*info must be a dict",
    "reset_obs_only": r"reset of .* returned one value .*; it must return two values, \(observation, info\)",
    "reset_info_none": "reset of .* returned the info None; .*info must be a dict",
    "reset_three": "reset of .* returned 3 values; it must return two values",
    "terminated_none": "returned terminated=None; it must be True or False",
    "terminated_text": "returned terminated='False'; it must be True or False",
    "terminated_two": "returned terminated=2; it must be True or False",
    "truncated_nan": "returned truncated=nan; it must be True or False",
    "truncated_array": r"returned truncated=array\(\[False, False\]\); it must be True or False",
    "obs_complex": "an observation is of complex",
    "obs_text": "an observation is of <U1",
    "reward_complex": "returned the reward 1j; it must be one number",
    "reward_none": "returned the reward None; it must be one number",
}
SPACES = {
    "Graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
    "Text": spaces.Text(8),
    "Sequence": spaces.Sequence(spaces.Discrete(3)),
    "OneOf": spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
    "None": None,
}
OBS, ACT = spaces.Box(-10.0, 10.0, (2,), np.float32), spaces.Discrete(2)


def odd_space(kind, nested):
    space = SPACES[kind]
    if nested:
        return spaces.Dict({"robot": spaces.Tuple([spaces.Dict({"eye": OBS, "odd": space})]), "x": OBS})
    return space


class Returns(gym.Env):
    """Sound until step `AT` of its first episode (or the second reset)."""

    observation_space, action_space = OBS, ACT

    def __init__(self, fault="", render_mode=None):
        self.fault, self.episode = fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.episode = 0, self.episode + 1
        found = np.zeros(2, np.float32), {}
        return RESETS[self.fault](*found) if self.fault in RESETS and self.episode == 2 else found

    def step(self, action):
        self.time += 1
        found = np.full(2, self.time, np.float32), 1.0, self.time == 5, False, {}
        return STEPS[self.fault](*found) if self.fault in STEPS and self.time == AT else found


class OddSpaces(gym.Env):
    """Spaces of which one is not supported. It must not be reset before that is said."""

    observation_space, action_space = OBS, ACT

    def __init__(self, kind, which, nested=False):
        setattr(self, f"{which}_space", odd_space(kind, nested))

    def reset(self, **kwargs):
        raise AssertionError("nothing may be asked of it")


class VectorReturns(VectorEnv):
    """Two envs in DISABLED mode; what goes wrong is wrong for all of them. `kind`: of its observations."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    num_envs, spec = 2, None
    single_observation_space, single_action_space = OBS, ACT

    def __init__(self, fault="", tensors=False, **odd):
        self.fault, self.resets, self.time = fault, 0, 0
        self.as_given = np.array
        if tensors:
            import torch  # not for every worker

            self.as_given = lambda x: torch.from_numpy(np.array(x))
        for which, space in odd.items():
            setattr(self, f"single_{which}_space", space)

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        found = self.as_given(np.zeros((2, 2), np.float32)), {}
        return RESETS[self.fault](*found) if self.fault in RESETS and self.resets == 2 else found

    def step(self, action):
        self.time += 1
        over = np.full(2, self.time % 5 == 0)
        obs, ends = self.as_given(np.full((2, 2), self.time % 5, np.float32)), self.as_given(over)
        found = [obs, self.as_given(np.ones(2)), ends, self.as_given(np.zeros(2, bool)), {}]
        if self.time != AT or self.fault not in STEPS:
            return tuple(found)
        name = self.fault
        if name in ("terminated_none", "terminated_text", "terminated_two", "truncated_nan"):
            one = STEPS[name](*found)[2 if name.startswith("terminated") else 3]
            found[2 if name.startswith("terminated") else 3] = self.columns([one, one])
            return tuple(found)
        if name in ("reward_none", "obs_text"):
            found[1 if name == "reward_none" else 0] = [None, None] if name == "reward_none" else [["1", "2"]] * 2
            return tuple(found)
        return STEPS[name](*found)

    def columns(self, values):
        if isinstance(values[0], (int, float)):
            return self.as_given(np.array(values))
        return np.array(values, object)

    def close(self, **kwargs):
        pass


class WorldReturns:
    """Two agents; what goes wrong is wrong for the second of them."""

    metadata, possible_agents = {"name": "odd"}, ["a", "b"]
    odd = {}

    def __init__(self, fault="", kind=None, which=None, nested=False):
        self.fault, self.resets = fault, 0
        if which:
            self.odd = {which: odd_space(kind, nested)}

    def observation_space(self, agent):
        return self.odd.get("observation", OBS)

    def action_space(self, agent):
        return self.odd.get("action", ACT)

    def reset(self, seed=None, options=None):
        self.time, self.agents, self.resets = 0, list(self.possible_agents), self.resets + 1
        found = {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}
        return RESETS[self.fault](*found) if self.fault in RESETS and self.resets == 2 else found

    def step(self, actions):
        self.time += 1
        over = self.time == 5
        each = {agent: (np.full(2, self.time, np.float32), 1.0, over, False, {}) for agent in self.agents}
        if self.time == AT and self.fault in STEPS:
            found = STEPS[self.fault](*each["b"])
            if len(found) != 5 or self.fault == "step_info_none":
                whole = tuple({agent: values[k] for agent, values in each.items()} for k in range(5))
                return STEPS[self.fault](*whole)
            each["b"] = found
        self.agents = [] if over else self.agents
        return tuple({agent: values[k] for agent, values in each.items()} for k in range(5))

    def close(self):
        pass
