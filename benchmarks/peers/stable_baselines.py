"""One training run of Stable-Baselines3, sb3-contrib or SBX, for versus_peers.py, in the peer's own environment.

    python stable_baselines.py LIBRARY SPEC

LIBRARY: sb3, sb3_contrib or sbx. SPEC: JSON with algo, env, num_envs, total_steps, seed, normalize (VecNormalize around
observations and rewards), linear (settings that decay linearly to zero) and settings (the constructor's own). The last
line is a JSON object. The clock runs from the first env step to the last update. SBX compiles when it first sees a
shape, so its model learns from two rollouts before the clock starts; that time is reported as compile.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module, metadata
from time import perf_counter
from typing import Any

BEGUN = perf_counter()
PACKAGES = {"sb3": "stable_baselines3", "sb3_contrib": "sb3_contrib", "sbx": "sbx"}


def main(library: str, spec: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)  # the best for networks this small
    algorithms = import_module(PACKAGES[library])
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    class Clock(BaseCallback):
        start: float | None = None

        def _on_rollout_start(self) -> None:
            self.start = self.start or perf_counter()

        def _on_step(self) -> bool:
            return True

    imported = perf_counter()
    settings = dict(spec["settings"])
    for name in spec["linear"]:
        settings[name] = lambda left, first=settings[name]: first * left
    envs = make_vec_env(spec["env"], n_envs=spec["num_envs"], seed=spec["seed"])
    if spec["normalize"]:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    model = getattr(algorithms, spec["algo"])("MlpPolicy", envs, seed=spec["seed"], device="cpu", **settings)
    made = perf_counter()
    if library == "sbx":
        model.learn(2 * settings["n_steps"] * spec["num_envs"])
    compiled = perf_counter()
    clock = Clock()
    model.learn(spec["total_steps"], callback=clock)
    end = perf_counter()
    assert clock.start is not None
    seconds, steps = end - clock.start, model.num_timesteps
    returns = [episode["r"] for episode in model.ep_info_buffer]
    return {
        "total_steps": steps,
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "import_seconds": imported - BEGUN,
        "setup_seconds": made - imported,
        "compile_seconds": compiled - made,
        "train_return": sum(returns) / len(returns) if returns else None,
        "versions": {name: metadata.version(name) for name in versions(library)},
    }


def versions(library: str) -> tuple[str, ...]:
    own = {"sb3": (), "sb3_contrib": ("sb3-contrib",), "sbx": ("sbx-rl", "jax")}[library]
    return ("stable-baselines3", *own, "torch", "gymnasium")


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
