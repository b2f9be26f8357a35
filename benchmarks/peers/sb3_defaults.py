"""One run of Stable-Baselines3 or sb3-contrib with its own defaults, for defaults.py, in the peer's own environment.

    python sb3_defaults.py ALGO TASK SEED EPISODES

ALGO: ppo, a2c or trpo. TASK: a name from untuned.py. Only the seed is set: one env, as the constructor makes it.
The last line is a JSON object with the mean return of EPISODES greedy episodes.
"""

from __future__ import annotations

import json
import sys

import gymnasium as gym
import torch
from sb3_contrib import TRPO
from stable_baselines3 import A2C, PPO
from untuned import TASKS, make

ALGORITHMS = {"ppo": PPO, "a2c": A2C, "trpo": TRPO}


def main(algo: str, task: str, seed: int, episodes: int) -> dict[str, float]:
    torch.set_num_threads(1)
    env = make(task)
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gym.spaces.Dict) else "MlpPolicy"
    model = ALGORITHMS[algo](policy, env, seed=seed, device="cpu")
    model.learn(TASKS[task].steps)
    fresh, total = make(task), 0.0
    for episode in range(episodes):
        obs, _ = fresh.reset(seed=1_000_000 + 1_000 * seed + episode)
        over = False
        while not over:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = fresh.step(action if action.ndim else action.item())
            total, over = total + float(reward), terminated or truncated
    return {"mean_return": total / episodes, "steps": model.num_timesteps}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
