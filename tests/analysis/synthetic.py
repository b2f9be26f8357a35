"""Run directories with made-up numbers: what the readers see, without any training."""

import json

SETTINGS = {"total_steps": 1000, "learning_rate": 0.001, "gamma": 0.99, "threads": 1, "hidden_sizes": [64, 64]}


def make_run(folder, env="CartPole-v1", algo="ppo", seed=0, final=100.0, rows=None, **settings):
    """A finished run whose training return climbs from 0 to `final` in ten rows (or with these rows)."""
    folder.mkdir(parents=True)
    config = {"env": env, "algo": algo, "seed": seed, **SETTINGS, **settings}
    manifest = {"schema": 1, "env": env, "algo": algo, "seed": seed, "created": f"2026-01-01T00:00:{seed:02}+00:00"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "config.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items()))
    (folder / "status.json").write_text(json.dumps({"state": "done", "step": 1000}))
    if final is not None:
        (folder / "result.json").write_text(json.dumps({"eval": {"mean_return": final}}))
    if rows is None:
        rows = [
            {"step": 100 * i, "update": i, "episode_return": (final or 0.0) * i / 10, "kl": 0.01} for i in range(1, 11)
        ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    timings = [{"step": row["step"], "seconds": row["step"] / 50} for row in rows]
    (folder / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timings))
    return folder


def make_family(root, algo, finals, env="CartPole-v1", **settings):
    """A run per final score, with seeds 0, 1, …"""
    return [make_run(root / env / algo / f"s{i}", env, algo, i, final, **settings) for i, final in enumerate(finals)]
