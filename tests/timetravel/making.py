"""Tiny runs to go back into."""

import hashlib

import surefoot

COMMON = {
    "preset": "none",
    "progress": False,
    "seed": 3,
    "num_envs": 3,
    "eval_episodes": 0,
    "keep_checkpoints": "all",
    "hidden_sizes": (8,),
    "threads": 1,
}


def settings(algo="ppo", **more):
    """About sixteen updates; a row for every other one, a checkpoint every third or so."""
    if algo == "reinforce":
        own = {"total_steps": 1200, "max_episode_steps": 30, "log_every": 120, "checkpoint_every": 200}
    else:
        length = 6 if algo == "a2c" else 16
        steps = 3 * length
        own = {
            "total_steps": 16 * steps,
            "rollout_length": length,
            "log_every": 2 * steps,
            "checkpoint_every": 3 * steps,
        }
    return {**COMMON, **own, **more}


def train(algo="ppo", env="CartPole-v1", run_dir="run", **more):
    return surefoot.train(env, algo, run_dir=run_dir, **settings(algo, **more))


def fingerprint(run):
    """Of every file in a run's directory, with the time of its last change."""
    files = sorted(path for path in run.path.rglob("*"))
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        for path in files
    }
