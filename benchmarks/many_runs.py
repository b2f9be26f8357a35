"""How quickly many runs are listed and a long metrics file is shown: 1,000 runs, and a million rows.

    python benchmarks/many_runs.py [--runs 1000] [--rows 1000000]

Prints seconds, and keeps them in benchmarks/results/many_runs.json. The runs are synthetic: what `surefoot train`
writes, without the training.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from surefoot.runs import Catalog, index

ALGOS = ("a2c", "npg", "ppo", "reinforce", "trpo", "vpg")
ENVS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "HalfCheetah-v5")


def write_run(path: Path, *, number: int = 0, rows: int = 100, state: str = "done", **facts: object) -> Path:
    """A run directory as `surefoot train` leaves it, but for checkpoints."""
    env, algo, seed = ENVS[number // 60 % len(ENVS)], ALGOS[number // 10 % len(ALGOS)], number % 10
    path.mkdir(parents=True)
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
    named = {"env": env, "algo": algo, "seed": seed}
    manifest = {"schema": 1, "created": created.isoformat(), "name": None, "tags": [], **named, **facts}
    config = {**named, "total_steps": rows * 512, "learning_rate": 0.0003 * (1 + number // 240), "gamma": 0.99}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (path / "config.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.items()), encoding="utf-8")
    (path / "status.json").write_text(json.dumps({"state": state, "step": rows * 512, "eval_return": None}))
    write_rows(path / "metrics.jsonl", rows, seed=number)
    with open(path / "timings.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"step": (i + 1) * 512, "seconds": 0.1 * (i + 1)}) + "\n" for i in range(rows))
    return path


def write_rows(file: Path, rows: int, seed: int = 0) -> None:
    """A learning curve with the metrics of PPO."""
    draw = random.Random(seed)
    names = ("policy_loss", "value_loss", "approx_kl", "clip_fraction", "grad_norm", "kl_p95", "kl_max", "epochs")
    speed = draw.uniform(2, 6)
    with open(file, "w", encoding="utf-8") as out:
        for i in range(rows):
            done = (i + 1) / rows
            learned = 1 - math.exp(-speed * done)
            row = {"step": (i + 1) * 512, "update": i + 1, "episodes": 3 * i}
            row |= {"episode_return": 20 + 480 * learned + draw.gauss(0, 25), "entropy": 0.69 * (1 - 0.8 * done)}
            row |= {"kl": abs(draw.gauss(0.01, 0.004)), "explained_variance": learned - abs(draw.gauss(0, 0.05))}
            row |= {name: draw.random() for name in names}
            if i % 20 == 19:
                row["eval_return"] = 20 + 480 * learned
            out.write(json.dumps(row) + "\n")


def seconds(action: Callable[[], object]) -> dict[str, float]:
    """By the clock and of this process: other programs make the first of them longer."""
    clock, own = time.perf_counter(), time.process_time()
    action()
    return {"wall": round(time.perf_counter() - clock, 4), "cpu": round(time.process_time() - own, 4)}


def measure(root: Path, runs: int, rows: int) -> dict[str, object]:
    from starlette.testclient import TestClient

    from surefoot.dashboard.app import make_app

    for number in range(runs):
        write_run(root / "many" / f"run-{number:04d}", number=number)
    write_run(root / "long" / "one", rows=rows)
    catalog = Catalog(root / "many")
    found: dict[str, object] = {
        "runs": runs,
        "first look": seconds(catalog.look),
        "second look": seconds(catalog.look),
        "surefoot list runs": seconds(lambda: [index.describe(run) for run in index.list_runs(root / "many")]),
    }
    with TestClient(make_app(root / "many"), base_url="http://127.0.0.1") as client:
        found["the page: list"] = seconds(lambda: client.get("/api/runs"))
    with TestClient(make_app(root / "long"), base_url="http://127.0.0.1") as client:
        found |= {"rows": rows, "megabytes": (root / "long" / "one" / "metrics.jsonl").stat().st_size // 10**6}
        found["open the long run"] = seconds(lambda: [client.get("/api/runs"), client.get("/api/metrics?run=one")])
        curve = "/api/curves?run=one&metric=kl"
        found["its curve"] = seconds(lambda: client.get(curve))
        found["against wall time"] = seconds(lambda: client.get(f"{curve}&x=seconds"))
        found["a zoom"] = seconds(lambda: client.get(f"{curve}&from={rows * 100}&to={rows * 102}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    from machine import RESULTS, describe

    machine = describe()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), arguments.runs, arguments.rows)
    text = json.dumps({"machine": machine, **found}, indent=2) + "\n"
    (RESULTS / "many_runs.json").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
