"""The adapter of surefoot itself, checked by `surefoot conformance` without a file."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import surefoot
from surefoot.math.distributions import Categorical
from surefoot.math.returns import gae, td_error
from surefoot.user_code import name_of

if TYPE_CHECKING:
    from surefoot.types import Array, GymEnv, GymVectorEnv

PACKAGES = ["surefoot"]
NOTES = {
    "truncation": "PPO; nothing is set for time limits",
    "autoreset": "PPO on the ready-made vector env",
    "gae": "math/returns.py",
    "kl": "Categorical.kl_to",
    "first-ratio": "the metric ratio_error of the first update",
    "resume": "surefoot.resume",
}


def values(
    make_env: type[GymEnv] | GymVectorEnv, states: Array, *, steps: int, gamma: float, gae_lambda: float, seed: int
) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        run = surefoot.train(
            make_env, "ppo", preset="none", run_dir=Path(folder, "run"), total_steps=steps, gamma=gamma,
            gae_lambda=gae_lambda, seed=seed, num_envs=4, rollout_length=16, num_epochs=10, num_minibatches=1,
            learning_rate=1e-2, progress=False, eval_episodes=0,
        )  # fmt: skip
        agent = surefoot.load(run)
    found: list[float] = np.asarray(agent.value(states.astype(np.float32))).tolist()
    return found


def vector_values(
    make_envs: Callable[[], GymVectorEnv], states: Array, *, steps: int, gamma: float, gae_lambda: float, seed: int
) -> list[float]:
    return values(make_envs(), states, steps=steps, gamma=gamma, gae_lambda=gae_lambda, seed=seed)


def advantages(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> Array:
    r, v, after, over, cut = (torch.from_numpy(x) for x in (reward, value, next_value, terminated, truncated))
    return gae(td_error(r, v, after, over, gamma), over | cut, gamma, gae_lambda).numpy()


def kl(old_logits: Array, new_logits: Array) -> float:
    old, new = (Categorical(torch.from_numpy(logits)) for logits in (old_logits, new_logits))
    return float(old.kl_to(new).mean())


def first_ratio(make_env: type[GymEnv], *, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = _short(make_env, Path(folder, "run"), 128, seed)
        return float(run.metrics[0]["ratio_error"])


def resume(make_env: type[GymEnv], folder: str, *, before: int, after: int, seed: int) -> tuple[str, str]:
    whole = _short(make_env, Path(folder, "whole"), before + after, seed)
    part = _short(make_env, Path(folder, "part"), before, seed)
    resumed = surefoot.resume(part, total_steps=before + after, trust=True, progress=False)
    return _digest(whole), _digest(resumed)


def _short(make_env: type[GymEnv], run_dir: Path, steps: int, seed: int) -> surefoot.Run:
    return surefoot.train(
        name_of(make_env), "ppo", preset="none", run_dir=run_dir, total_steps=steps, seed=seed, num_envs=2,
        rollout_length=64, num_minibatches=2, progress=False, eval_episodes=0,
    )  # fmt: skip


def _digest(run: surefoot.Run) -> str:
    policy = surefoot.load(run).policy
    return hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in policy.parameters())).hexdigest()
