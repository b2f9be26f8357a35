"""One run of Stable-Baselines3's PPO or sb3-contrib's TRPO for results.py, in the peer's own environment.

    python sb3_zoo.py FOLDER SPEC

SPEC: JSON with algo (ppo or trpo), env, seed, steps, episodes and settings (as the RL Zoo writes them). The run saves
itself in FOLDER between rollouts, every few minutes and when it gets SIGTERM; the same command continues it, with fresh
episodes, because the library does not keep the open ones. The result, with the mean return of greedy episodes under the
final weights, is written to FOLDER/result.json.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any

import gymnasium as gym
import torch
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

KINDS = {"ppo": PPO, "trpo": TRPO}
ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}
SAVE_EVERY = 300.0  # seconds
PACKAGES = ("stable-baselines3", "sb3-contrib", "torch", "gymnasium", "mujoco")


class Stopped(Exception):
    """The run was asked to end, and is saved."""


class Saved:
    """What is kept between two calls. A complete copy is always there, whenever the process is killed."""

    def __init__(self, folder: Path) -> None:
        self.now, self.old, self.new = folder / "saved", folder / "old", folder / "saving"
        if not self.now.exists() and self.old.exists():
            self.old.rename(self.now)

    def write(self, model: Any, seconds: float, continued: int) -> None:
        for leftover in (self.new, self.old):
            shutil.rmtree(leftover, ignore_errors=True)
        self.new.mkdir(parents=True)
        model.save(self.new / "model.zip")
        if isinstance(model.env, VecNormalize):
            model.env.save(str(self.new / "normalize.pkl"))
        facts = {"seconds": seconds, "continued": continued}
        (self.new / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        if self.now.exists():
            self.now.rename(self.old)
        self.new.rename(self.now)

    def facts(self) -> dict[str, Any] | None:
        if not self.now.exists():
            return None
        found: dict[str, Any] = json.loads((self.now / "facts.json").read_text(encoding="utf-8"))
        return found


class Keeper(BaseCallback):
    """Saves between rollouts."""

    def __init__(self, saved: Saved, seconds: float, continued: int) -> None:
        super().__init__()
        self.saved, self.seconds, self.continued = saved, seconds, continued
        self.begun = self.last = monotonic()
        self.asked = False

    @property
    def spent(self) -> float:
        return self.seconds + monotonic() - self.begun

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.asked or monotonic() - self.last > SAVE_EVERY:
            self.saved.write(self.model, self.spent, self.continued)
            self.last = monotonic()
        if self.asked:
            raise Stopped


def policy_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The zoo's `policy_kwargs`, with the activation by its name."""
    return {name: ACTIVATIONS[value] if name == "activation_fn" else value for name, value in given.items()}


def build(spec: dict[str, Any], saved: Saved, continued: int) -> Any:
    settings = dict(spec["settings"])
    num_envs, normalize = settings.pop("n_envs", 1), settings.pop("normalize", False)
    kind, seed = KINDS[spec["algo"]], spec["seed"]
    envs: Any = make_vec_env(spec["env"], n_envs=num_envs, seed=seed)
    if continued:
        if normalize:
            envs = VecNormalize.load(str(saved.now / "normalize.pkl"), envs)
        model = kind.load(saved.now / "model.zip", env=envs, device="cpu")
        model.set_random_seed(seed + 1_000_000 * continued)  # not the numbers that it had at the start
        return model
    if normalize:
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    settings["policy_kwargs"] = policy_arguments(settings.pop("policy_kwargs", {}))
    return kind("MlpPolicy", envs, seed=seed, device="cpu", **settings)


def evaluate(model: Any, env_id: str, episodes: int, seed: int) -> float:
    """The mean return of greedy episodes, in rewards of the env itself."""
    env, total = gym.make(env_id), 0.0
    seen = model.env.normalize_obs if isinstance(model.env, VecNormalize) else lambda obs: obs
    for episode in range(episodes):
        obs, _ = env.reset(seed=1_000_000 + 1_000 * seed + episode)
        over = False
        while not over:
            action, _ = model.predict(seen(obs), deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main(folder: Path, spec: dict[str, Any]) -> int:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    saved = Saved(folder)
    before = saved.facts()
    continued = 0 if before is None else before["continued"] + 1
    keeper = Keeper(saved, 0.0 if before is None else before["seconds"], continued)
    signal.signal(signal.SIGTERM, lambda *_: setattr(keeper, "asked", True))
    model = build(spec, saved, continued)
    left = spec["steps"] - model.num_timesteps
    try:
        if left > 0:
            model.learn(left, callback=keeper, reset_num_timesteps=not continued)
    except Stopped:
        return 128 + signal.SIGTERM
    seconds = keeper.spent
    saved.write(model, seconds, continued)  # in case that it is killed while it is evaluated
    result = {
        "score": round(evaluate(model, spec["env"], spec["episodes"], spec["seed"]), 3),
        "seconds": round(seconds, 1),
        "steps": int(model.num_timesteps),
        "continued": continued,
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }
    half = folder / "result.partial"
    half.write_text(json.dumps(result), encoding="utf-8")
    half.replace(folder / "result.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
