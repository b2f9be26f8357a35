"""Policies of every kind with weights that matter, and their descriptions, without training anything."""

from itertools import product

import numpy as np
import torch
from gymnasium import spaces

from surefoot.deploy.describe import Builder
from surefoot.deploy.weights import Weights
from surefoot.policies.config import PolicyConfig
from surefoot.settings import options
from surefoot.spaces.as_json import space_to_json
from surefoot.training.build.parts import initial_policy
from tests.combinations import ACTIONS, MASKABLE, MASKED, MEMORY, OBSERVATIONS

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32))
FREE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
CASES = [
    case
    for case in product(OBSERVATIONS, ACTIONS, MEMORY, MASKED)
    if not case[-1] or case[1] in MASKABLE  # (observation, action, memory, masked)
]
PIXELS = spaces.Box(0, 255, (84, 84, 4), np.uint8)
HYBRID = spaces.Dict({"a": BOX, "b": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (), np.float64)])})
# What the pairs above do not have: (observations, actions, settings).
KINDS = {
    "tanh": (FREE, BOX, {"action_bounds": "tanh", "normalize_observations": True}),
    "beta": (FREE, BOX, {"action_bounds": "beta"}),
    "beta-hybrid": (FREE, HYBRID, {"action_bounds": "beta"}),
    "state-std": (FREE, BOX, {"std": "state", "activation": "elu"}),
    "state-hybrid": (FREE, HYBRID, {"std": "state", "action_bounds": "tanh"}),
    "gsde": (FREE, BOX, {"std": "gsde", "activation": "silu", "sde_resample": 4}),
    "gsde-hybrid": (FREE, HYBRID, {"std": "gsde", "memory": "gru", "memory_size": 8}),
    "tanh-mean": (FREE, HYBRID, {"tanh_mean": True, "activation": "relu"}),
    "unbounded": (FREE, spaces.Box(-np.inf, np.inf, (2,), np.float64), {"shared_trunk": True}),
    "linear": (FREE, spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-2, 7]]), {"hidden_sizes": ()}),
    "bits": (spaces.MultiBinary((2, 2)), spaces.MultiBinary((2, 2)), {}),
    "scalar": (spaces.Box(-1.0, 1.0, (), np.float32), BOX, {"normalize_observations": True}),
    "table": (spaces.Box(-1.0, 1.0, (2, 3), np.float64), BOX, {"normalize_observations": True}),
    "whole": (spaces.Box(-3, 9, (4,), np.int64), BOX, {"normalize_observations": True}),
    "embedding": (
        spaces.Tuple([spaces.Discrete(100, start=-3), spaces.MultiDiscrete([70, 2], start=[5, 1])]),
        spaces.Discrete(2),
        {"embedding_size": 4},
    ),
    "nature": (spaces.Box(0, 255, (40, 44, 2), np.uint8), spaces.Discrete(4), {}),
    "small": (spaces.Box(0, 255, (3, 20, 17), np.uint8), spaces.Discrete(4), {"memory": "lstm", "memory_size": 8}),
    "impala": (spaces.Box(0.0, 1.0, (17, 20, 3), np.float32), BOX, {"encoder": "impala"}),
    "frames": (spaces.Box(0, 255, (4, 12, 10, 3), np.uint8), spaces.Discrete(4), {"shared_trunk": False}),
    "grey": (spaces.Box(0, 10, (7, 9), np.uint8), spaces.Discrete(4), {"init": "torch"}),
    "camera": (
        spaces.Dict({"eye": spaces.Box(-4.0, 2.0, (4, 3, 10, 12)), "x": FREE}),
        BOX,
        {"normalize_observations": True},
    ),
}

PARTLY_HIDDEN = spaces.Dict(
    {
        "truth": spaces.Dict({"mass": spaces.Box(-1, 1, (2,), np.float32), "mode": spaces.Discrete(3)}),
        "pair": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4, start=1)]),
        "sensor": FREE,
    }
)
KINDS["layer-norm"] = (FREE, BOX, {"layer_norm": True, "shared_trunk": True, "activation": "relu"})
KINDS["privileged"] = (
    PARTLY_HIDDEN,
    HYBRID,
    {"critic_obs": ("truth", "pair/0"), "layer_norm": True, "normalize_observations": True},
)


def make(observations, actions, *, masked=False, critic=True, seed=3, **settings):
    """(a policy with random weights and statistics, the program that describes it)."""
    config = PolicyConfig(**settings)
    policy = initial_policy(observations, actions, config, 1, critic=critic, masked=masked)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            # As large as the weights of a trained network: a deep one would blow up the rounding of larger ones.
            inputs = parameter[0].numel() if parameter.dim() > 1 else 100
            parameter += torch.randn(parameter.shape, generator=generator) / inputs**0.5
        if policy.normalizer is not None:
            policy.normalizer.mean += torch.randn(policy.normalizer.mean.shape, generator=generator)
            policy.normalizer.var *= 1.5
            policy.normalizer.refresh()
    return policy.eval(), describe(policy, config)


def describe(policy, config):
    facts = {
        "observation_space": space_to_json(policy.layout.space),
        "action_space": space_to_json(policy.action_space),
        "policy": {option.name: getattr(config, option.name) for option in options(PolicyConfig)},
        "critic": policy.has_critic,
        "masked": bool(policy.layout.mask_size),
    }
    weights = Weights({name: tensor.numpy().copy() for name, tensor in policy.state_dict().items()})
    program = Builder(facts, config, weights).build()
    weights.require_all_taken()
    return program


def make_case(observation, action, memory, masked):
    settings = {"memory": memory, "normalize_observations": True, "hidden_sizes": (8, 8)}
    settings |= {"memory_size": 6} if memory != "none" else {}
    return make(OBSERVATIONS[observation], ACTIONS[action], masked=masked, **settings)


def make_kind(kind):
    observations, actions, settings = KINDS[kind]
    return make(observations, actions, **{"hidden_sizes": (8, 8), **settings})
