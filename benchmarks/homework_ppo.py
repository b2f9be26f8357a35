"""Why the homework's PPO ends below its REINFORCE: its setting with one thing changed at a time, over ten seeds.

    python benchmarks/homework_ppo.py [--seeds 10] [--steps 500000] [--variants "as given" "no clip"]
    python benchmarks/homework_ppo.py --gae --seeds 3

Chapters 5 and 6 of the course show the numbers, so they are kept in the package. `--gae` measures the repaired GAE, for
1,048,576 steps. A run that is there already is not repeated: the script can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import machine

import surefoot

FOLDER = machine.ROOT / "surefoot" / "course"
VARIANTS: dict[str, dict[str, object]] = {
    "as given": {"preset": "homework/ppo"},
    "no clip": {"preset": "homework/ppo", "clip_ratio": 1e6},
    "REINFORCE": {"preset": "homework/reinforce"},
    "rewards / 100": {"preset": "homework/ppo", "reward_scale": 0.01},
    "advantages standardised": {"preset": "homework/ppo", "normalize_advantage": "minibatch"},
}
GAE: dict[str, dict[str, object]] = {
    "GAE, rewards / 100": {"preset": "homework/ppo-gae"},
    "GAE, rewards as they are": {"preset": "homework/ppo-gae", "reward_scale": 1.0},
}


def measure(settings: dict[str, object], seed: int, steps: int) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        given = {**settings, "seed": seed, "total_steps": steps, "run_dir": f"{folder}/run", "log_every": 1}
        run = surefoot.train(progress=False, threads=1, eval_episodes=100, **given)  # type: ignore[arg-type]
        rows = run.metrics

        def column(name: str) -> list[float | None]:
            return [None if row.get(name) is None else round(row[name], 4) for row in rows]

        return {
            "eval": round(run.result["eval"]["mean_return"], 1),
            **{name: column(name) for name in ("step", "episode_return", "clip_fraction", "kl", "explained_variance")},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS)
    parser.add_argument("--gae", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    every = GAE if arguments.gae else VARIANTS
    steps = arguments.steps or (1_048_576 if arguments.gae else 500_000)
    out = arguments.out or FOLDER / ("homework_gae.json" if arguments.gae else "homework_ppo.json")
    known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if known.get("steps") != steps:
        known = {"steps": steps, "variants": {}}
    for seed in range(arguments.seeds):
        for name in arguments.variants or every:
            found = known["variants"].setdefault(name, {})
            if str(seed) not in found:
                found[str(seed)] = measure(every[name], seed, steps)
                print(f"{name}, seed {seed}: {found[str(seed)]['eval']}", flush=True)
                out.write_text(json.dumps(known) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
