"""Steps per second against Stable-Baselines3, side by side on one machine with the same hyperparameters.

    python benchmarks/versus_sb3.py --sb3-python ENV/bin/python [--rounds 5]

ENV is a virtual environment of its own with `pip install torch==2.13.0 stable-baselines3 "gymnasium[classic-control]"`.
The two are run alternately, each in a process of its own with one thread (their best for networks this small), and the
ratio is taken round by round, because the machine's speed drifts. steps_per_second is env steps over the wall time from
the first env step to the last update, with our logging, TensorBoard events and saving included; SB3 logs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "versus_sb3.json"

OURS = """
import json, surefoot
run = surefoot.train("CartPole-v1", "ppo", preset="none", total_steps=STEPS, seed=SEED, progress=False, eval_episodes=0,
    num_envs=8, rollout_length=32, num_epochs=20, num_minibatches=1, gamma=0.98, gae_lambda=0.8, learning_rate=1e-3,
    learning_rate_schedule="linear", clip_ratio=0.2, clip_ratio_schedule="linear", entropy_coef=0.0)
print(json.dumps(run.result))
"""

THEIRS = """
import json, time, torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.callbacks import BaseCallback
class Clock(BaseCallback):
    start = None
    def _on_step(self):
        return True
    def _on_rollout_start(self):
        self.start = self.start or time.perf_counter()
clock = Clock()
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8), n_steps=32, batch_size=256, n_epochs=20, gamma=0.98,
    gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda p: 1e-3 * p, clip_range=lambda p: 0.2 * p, seed=SEED,
    device="cpu")
model.learn(STEPS, callback=clock)
seconds = time.perf_counter() - clock.start
print(json.dumps({"total_steps": model.num_timesteps, "steps_per_second": model.num_timesteps / seconds}))
"""


def measure(python: str, program: str, steps: int, seed: int) -> float:
    """Steps per second of one program in a fresh process and directory."""
    code = program.replace("STEPS", str(steps)).replace("SEED", str(seed))
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return float(json.loads(done.stdout.splitlines()[-1])["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3-python", required=True, help="the interpreter of the environment that has SB3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50_000)
    arguments = parser.parse_args()
    rounds = []
    for seed in range(arguments.rounds):
        ours = measure(sys.executable, OURS, arguments.steps, seed)
        theirs = measure(arguments.sb3_python, THEIRS, arguments.steps, seed)
        rounds.append({"surefoot": ours, "sb3": theirs, "ratio": ours / theirs})
        print(f"round {seed}: surefoot {ours:,.0f}  sb3 {theirs:,.0f}  ratio {ours / theirs:.2f}", flush=True)
    ratios = [found["ratio"] for found in rounds]
    summary = {
        "setting": "CartPole-v1, 8 envs x 32 steps, 20 epochs, batch 256, two 64-64 tanh nets, one thread",
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "median_ratio": statistics.median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
        "rounds": rounds,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"median ratio {summary['median_ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f}); written to {RESULTS}")


if __name__ == "__main__":
    main()
