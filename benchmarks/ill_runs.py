"""Runs made ill on purpose, each in one way, and the advice that `surefoot diagnose` must give first.

A case takes an env's usual settings and spoils one thing: a setting, the env (through a wrapper), or the network. So
the same thirteen illnesses can be given to any env. `benchmarks/diagnosis.py` trains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

import surefoot

if TYPE_CHECKING:
    from surefoot.training.trainer import Trainer

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Patient:
    """An env that learns with these settings, until something is done to it."""

    env: str
    settings: Settings
    learning_rate: float
    short: int  # a time limit that ends episodes before anything can be learned
    gamma: float  # far too short-sighted


class IgnoredAction(gym.ActionWrapper[Any, Any, Any]):
    """The env takes a random action, whatever the policy wants."""

    def action(self, action: Any) -> Any:
        return self.env.action_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.env.action_space.seed(seed)
        return super().reset(seed=seed, options=options)


class Noise(gym.ObservationWrapper[Any, Any, Any]):
    """The policy sees random numbers in place of the observation."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        self.random = np.random.default_rng(0)

    def observation(self, observation: Any) -> Any:
        return self.random.normal(size=np.shape(observation)).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)


class Stuck(gym.Wrapper[Any, Any, Any, Any]):
    """The env stands still from its 50th step on: the same observation, no reward, no end."""

    steps = 0

    def reset(self, **how: Any) -> Any:
        self.last, info = super().reset(**how)
        return self.last, info

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps >= 50:
            return self.last, 0.0, False, False, {}
        self.last, *rest = super().step(action)
        return (self.last, *rest)


def one_stuck(env: str) -> Any:
    """Makes envs of which the fourth gets stuck."""
    made = count()
    return lambda: Stuck(gym.make(env)) if next(made) == 3 else gym.make(env)


class Dying(surefoot.Callback):
    """Kills 95 % of the actor's last hidden layer after the third update: units whose bias no input overcomes."""

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if trainer.update == 3:
            with torch.no_grad():
                hidden = [m for m in trainer.policy.actor.modules() if isinstance(m, torch.nn.Linear)][-2]
                hidden.bias[: int(0.95 * len(hidden.bias))] = -1e3


class Collapsing(surefoot.Callback):
    """Makes the policy sure of its first action after the third update."""

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if trainer.update == 3:
            with torch.no_grad():
                [m for m in trainer.policy.actor.modules() if isinstance(m, torch.nn.Linear)][-1].bias[0] = 30.0


@dataclass(frozen=True)
class Case:
    """One illness."""

    name: str
    advice: Sequence[str]  # rules of which one must come first
    settings: Settings = field(default_factory=dict)
    env: Any = None  # in place of the patient's
    continuous: bool = False
    callbacks: Sequence[surefoot.Callback] = ()


def wrapped(wrapper: Any, env: str) -> Any:
    return wrapper(gym.make(env))


def cases(discrete: Patient, continuous: Patient) -> list[Case]:
    """Thirteen illnesses: eleven on an env with discrete actions, two on one with continuous ones. Both envs are also
    trained as they are, which must give no advice.
    """
    one = discrete
    return [
        Case("left_alone", []),
        Case("left_alone", [], continuous=True),
        Case("learning_rate_x100", ["updates_too_large"], {"learning_rate": 100 * one.learning_rate}),
        Case("clip_10", ["clip_too_wide"], {"clip_ratio": 10.0}),
        Case("critic_does_not_learn", ["critic_not_learning"], {"value_coef": 0.0}),
        Case("exploding_rewards", ["rewards_too_large"], {"reward_scale": 1e4}),
        Case("all_actions_clipped", ["actions_cut"], {"log_std_init": 4.0}, continuous=True),
        Case("time_limit_dominates", ["time_limit_dominates"], {"max_episode_steps": one.short}),
        Case("collapsed_entropy", ["collapsed"], {"engine": "torch"}, callbacks=[Collapsing()]),
        Case("dead_relu", ["dead_units"], {"activation": "relu", "engine": "torch"}, callbacks=[Dying()]),
        Case("one_stuck_env", ["stuck_env"], env=one_stuck(one.env)),
        Case("wrong_gamma", ["gamma_too_small"], {"gamma": one.gamma}),
        Case("action_changes_nothing", ["action_changes_nothing"], env=partial(wrapped, IgnoredAction, one.env)),
        Case("observation_says_nothing", ["observation_says_nothing"], env=partial(wrapped, Noise, one.env)),
        Case("no_exploration", ["exploration_too_small"], {"log_std_init": -6.0}, continuous=True),
    ]


FIVE_TORQUES = "PendulumFiveTorques-v0"


class FiveTorques(gym.ActionWrapper[Any, Any, Any]):
    """The pendulum with discrete actions."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=-1).unwrapped)
        self.action_space = gym.spaces.Discrete(5)

    def action(self, action: Any) -> Any:
        return np.array([float(action) - 2.0], np.float32)


gym.register(FIVE_TORQUES, FiveTorques, max_episode_steps=200)

PPO: Settings = {"num_envs": 8, "rollout_length": 128, "num_minibatches": 4, "gae_lambda": 0.98}
USUAL: Settings = {**PPO, "learning_rate": 1e-3, "total_steps": 60_000}
KNOWN = (  # on which the rules were written: discrete and continuous actions
    (
        Patient("CartPole-v1", USUAL, 1e-3, 8, 0.1),
        Patient("Pendulum-v1", {**USUAL, "gamma": 0.9}, 1e-3, 8, 0.1),
    ),
    (
        # With rewards as they are, its critic explains nothing in this time, even where the policy learns.
        Patient("LunarLander-v3", {**USUAL, "reward_scale": 0.02}, 1e-3, 20, 0.1),
        Patient("InvertedPendulum-v5", USUAL, 1e-3, 8, 0.1),
    ),
    (  # unseen at first; two rules failed on them and were corrected
        Patient("Acrobot-v1", {**USUAL, "reward_scale": 0.1, "total_steps": 120_000}, 1e-3, 20, 0.1),
        Patient("InvertedDoublePendulum-v5", {**USUAL, "reward_scale": 0.1, "total_steps": 120_000}, 1e-3, 8, 0.1),
    ),
)
UNSEEN = (  # chosen before the rules were frozen; nobody looked at an ill run until then
    (
        Patient(FIVE_TORQUES, {**USUAL, "reward_scale": 0.1, "total_steps": 120_000}, 1e-3, 8, 0.1),
        Patient("Reacher-v5", {**USUAL, "total_steps": 120_000}, 1e-3, 8, 0.1),
    ),
)


def ill_runs(pairs: Sequence[tuple[Patient, Patient]]) -> dict[str, tuple[Patient, Case]]:
    """`CartPole-v1/clip_10` and so on."""
    found = [
        (continuous if case.continuous else discrete, case)
        for discrete, continuous in pairs
        for case in cases(discrete, continuous)
    ]
    return {f"{patient.env}/{case.name}": (patient, case) for patient, case in found}


def train(patient: Patient, case: Case, seed: int, folder: str) -> surefoot.Run:
    """Train one case from one seed."""
    return surefoot.train(
        case.env or patient.env,
        "ppo",
        preset="none",
        seed=seed,
        threads=1,
        eval_episodes=0,
        progress=False,
        run_dir=folder,
        callbacks=list(case.callbacks),
        **{**patient.settings, **case.settings},
    )
