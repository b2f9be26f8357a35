"""Every kind of observation, action, memory and mask, freely combined, and an array that covers all pairs."""

from itertools import combinations, product

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from surefoot.algorithms import ALGORITHMS

VECTOR = spaces.Box(-5.0, 5.0, (3,), np.float32)
OBSERVATIONS = {
    "flat": VECTOR,
    "Dict": spaces.Dict({"pose": VECTOR, "mode": spaces.Discrete(3, start=1)}),
    "Tuple": spaces.Tuple([VECTOR, spaces.MultiBinary(2)]),
    "nested": spaces.Dict(
        {
            "body": spaces.Dict(
                {"arm": VECTOR, "grip": spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([2, 3])])}
            ),
            "camera": spaces.Box(0, 255, (6, 6, 1), np.uint8),
        }
    ),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": spaces.Discrete(6),
}
ACTIONS = {
    "Discrete": spaces.Discrete(3, start=2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32)),
    "hybrid": spaces.Dict({"move": spaces.Box(-1.0, 1.0, (2,), np.float32), "use": spaces.Discrete(3)}),
}
MEMORY = ("none", "gru", "lstm")
MASKED = (False, True)
FACTORS = {
    "algo": tuple(ALGORITHMS),
    "observation": tuple(OBSERVATIONS),
    "action": tuple(ACTIONS),
    "memory": MEMORY,
    "masked": MASKED,
}
MASKABLE = {"Discrete": 3, "MultiDiscrete": 5, "hybrid": 3}


def possible(case):
    return not case["masked"] or case["action"] in MASKABLE


def full_product():
    cases = (dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values()))
    return [case for case in cases if possible(case)]


def covering_array():
    """Greedy: cases until every pair of values of two factors that can go together has been together."""

    def pairs(case):
        return {((a, case[a]), (b, case[b])) for a, b in combinations(FACTORS, 2)}

    cases = full_product()
    left = set().union(*(pairs(case) for case in cases))
    chosen = []
    while left:
        best = max(cases, key=lambda case: len(pairs(case) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


class AnyEnv(gym.Env):
    """Observations drawn from the episode's seed, episodes of 3 to 9 steps that end in either way, masks in `info`."""

    def __init__(self, observation="flat", action="Discrete", masked=False):
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]
        self.choices = MASKABLE.get(action, 0) if masked else 0
        self.kind = action

    def _observe(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        info = {}
        if self.choices:
            mask = self.np_random.random(self.choices) < 0.6
            mask[[0, 2] if self.kind == "MultiDiscrete" else [0]] = True  # the first of each component is always legal
            self.mask = info["action_mask"] = mask
        return self.observation_space.sample(), info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(3, 10))
        return self._observe()

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if self.choices:
            self._check_legal(action)
        self.time += 1
        end, even = self.time == self.length, self.length % 2 == 0
        obs, info = self._observe()
        return obs, float(self.np_random.normal()), end and even, end and not even, info

    def _check_legal(self, action):
        if self.kind == "MultiDiscrete":
            assert self.mask[:2][action[0]], "an illegal action"
            assert self.mask[2:][action[1]], "an illegal action"
        else:
            index = action["use"] if self.kind == "hybrid" else action - 2
            assert self.mask[index], "an illegal action"


def make(**kwargs):
    """As a registered env, so that a run on it can be resumed."""
    return AnyEnv(**kwargs)


def settings(case):
    """A few updates of any algorithm."""
    common = {
        "preset": "none",
        "progress": False,
        "seed": 1,
        "num_envs": 4,
        "max_episode_steps": 12,
        "eval_episodes": 2,
        "hidden_sizes": (8,),
        "memory": case["memory"],
        "normalize_observations": True,
        "env_kwargs": {name: case[name] for name in ("observation", "action", "masked")},
    }
    length = {"reinforce": 12, "a2c": 5}.get(case["algo"], 16)
    per_update = length * 4
    more = {"num_minibatches": 2, "num_epochs": 2} if case["algo"] in ("ppo", "ppo-penalty") else {}
    if case["memory"] != "none":
        more["memory_size"] = 8
    if case["algo"] != "reinforce":
        more["rollout_length"] = length
    return {**common, **more, "total_steps": 4 * per_update, "log_every": per_update}
