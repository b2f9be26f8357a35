"""docs/results.md, from the scores of results.py."""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any

import machine
import numpy as np
from candidates import candidates

from surefoot.analysis.intervals import Estimate, interval
from surefoot.analysis.statistics import iqm

if TYPE_CHECKING:
    from results import Study

PUBLISHED = machine.RESULTS / "published.json"
LOCOMOTION = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
SIDES = {"sb3-ppo": "SB3 PPO", "sb3-trpo": "sb3-contrib TRPO"}
INTRODUCTION = """\
# Learning results

The best of our seven algorithms on Gymnasium's MuJoCo-v5 and Box2D, beside Stable-Baselines3's PPO and sb3-contrib's
TRPO with the settings of the RL Zoo, trained here for the same steps on the same seeds, and beside published scores.

- **Score.** The mean return of 20 greedy episodes with the final weights. A cell shows the interquartile mean over the
  seeds and its 95 % interval, as in [`surefoot compare`](compare.md).
- **Choice.** Every candidate (`benchmarks/candidates.py`) was trained for 300k steps on seed 100, and the best eight on
  seeds 101 and 102 too. The three best of these, and on MuJoCo three slow starters, were trained for all steps on the
  same seeds, and the best of them is the row's. The slow starters were added after the first rows had fallen short of
  their peers. They were found in full-length runs on seeds 200 to 202, and rows that had been complete were then chosen
  anew. The seeds of the table, 0 to 4, took no part in these choices. On Box2D, `ppo` and what is derived from it
  began with the numbers of shipped presets; LunarLander's and BipedalWalker's had been tuned on seed 0.
- **Peers.** Their settings are in `benchmarks/peers/zoo.py`. They finish their last rollout, so they get up to
  one rollout more. A peer's run that was interrupted went on with fresh episodes from its last rollout; ours go on
  exactly.
- **What the comparison can say.** Our settings were chosen here, for this version of the env and these steps, among
  some twenty-five candidates, one of which has the zoo's own settings for PPO. The zoo's were tuned by others, for
  older versions and partly for other steps (PPO on Humanoid: 10M), and where it has none we took its nearest. So a
  difference is one of settings as well as of libraries: the table shows what you get from each as it is, not which
  implementation is better with equal tuning.
- **Published.** The best scores of on-policy algorithms that we found within the same steps, and with any number of
  steps. They were measured on the version of the env that is named, and version 5 changed rewards; some are the maximum
  over training, or one run. `benchmarks/results/published.json` has the sources.
- **Time.** The median over the seeds, with one thread, beside other work on the same machine. For a comparison of
  speeds see [performance](performance.md).

CarRacing (images, 4M steps) and BipedalWalkerHardcore (100M steps) are not in the table: on a CPU they take weeks.

```sh
sh benchmarks/make_peers.sh DIR
python benchmarks/results.py --peers DIR    # stop it at any time; the next call goes on
```
"""


def estimate(scores: list[float]) -> Estimate | None:
    """The interquartile mean over the runs that did not fail."""
    sound = [score for score in scores if math.isfinite(score)]
    return interval([np.array(sound)], iqm) if sound else None


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def cell(scores: list[float] | None) -> str:
    found = None if scores is None else estimate(scores)
    if scores is None or found is None:
        return "–" if scores is None else "failed"
    lost = sum(not math.isfinite(score) for score in scores)
    ends = "" if math.isnan(found.low) else f" ({number(found.low)} to {number(found.high)})"
    return f"{number(found.value)}{ends}" + (f", {lost} failed" if lost else "")


def minutes(study: Study, env: str, who: str) -> str:
    """The median time of a run."""
    found = [one["seconds"] for one in study.outcomes(env, who).values() if "seconds" in one]
    return f"{statistics.median(found) / 60.0:.1f}" if found else "–"


def best_published(rows: list[dict[str, Any]], steps: int | None = None) -> dict[str, Any] | None:
    """Within `steps`, if they are given."""
    fitting = [row for row in rows if steps is None or (row["steps"] is not None and row["steps"] <= steps)]
    return max(fitting, key=lambda row: float(row["score"]), default=None)


def cite(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    version = row["env"].rpartition("-")[2]
    runs = "" if row["runs"] is None else ", 1 run" if row["runs"] == 1 else f", {row['runs']} runs"
    steps = "" if row["steps"] is None else f", {row['steps'] / 1e6:g}M"
    return f"{number(row['score'])} ({row['algo']}, {version}{steps}{runs}, {row['source'].rpartition('/')[2]})"


def complete(study: Study) -> dict[str, tuple[str, list[float]]]:
    """{env: (the winner, its scores)} for every row that has all its seeds."""
    found = {}
    for env in study.envs:
        best = study.winner(env)
        scores = None if best is None else study.scores(env, best, study.steps(env), study.seeds)
        if best is not None and scores is not None:
            found[env] = best, scores
    return found


def table(study: Study, published: dict[str, list[dict[str, Any]]]) -> list[str]:
    heads = ("env", "steps", "ours", "IQM (95 %)", *SIDES.values(), "published, same steps", "any steps")
    lines = machine.head(*heads, "minutes: ours, PPO, TRPO")
    rows = complete(study)
    for env in study.envs:
        steps, known = study.steps(env), published.get(env, [])
        best, scores = rows.get(env, (None, None))
        peers = {who: study.scores(env, who, steps, study.seeds) for who in SIDES}
        if best is None and not any(peers.values()):
            continue
        times = ["–" if best is None else minutes(study, env, best), *(minutes(study, env, who) for who in SIDES)]
        cells = [f"{steps / 1e6:g}M", best or "–", cell(scores), *map(cell, peers.values())]
        cells += [cite(best_published(known, steps)), cite(best_published(known)), ", ".join(times)]
        lines.append(machine.row(env, *cells))
    return lines


def shortfalls(study: Study, published: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Where something else is better, by the interquartile mean alone."""
    lines = []
    for env, (_, scores) in complete(study).items():
        ours = estimate(scores)
        level = -math.inf if ours is None else ours.value
        steps, better = study.steps(env), []
        for who, name in SIDES.items():
            peer = study.scores(env, who, steps, study.seeds)
            found = None if peer is None else estimate(peer)
            if found is not None and found.value > level:
                better.append(f"{name} {number(found.value)}")
        row = best_published(published.get(env, []), steps)
        if row is not None and row["score"] > level:
            better.append(f"published {cite(row)}")
        if better:
            lines.append(f"- **{env}**: {'; '.join(better)}. Ours {number(level)}.")
    return lines


def details(study: Study, env: str, best: str) -> list[str]:
    """Every seed, the command, and how the row was chosen."""
    lines = [f"### {env}", "", "```sh", f"{study.command(env, best)} --seed 0", "```", ""]
    lines += machine.head("", *(f"seed {seed}" for seed in study.seeds))
    for who, name in ({best: f"ours ({best})"} | SIDES).items():
        found = study.outcomes(env, who)
        each = [number(found[s]["score"]) if s in found and "score" in found[s] else "–" for s in study.seeds]
        lines.append(machine.row(name, *each))
    rounds = {
        "Seed 100 after 300k steps": study.scouts(env),
        "Mean of seeds 100 to 102 after 300k steps": study.first_round(env),
        "After all steps": study.second_round(env),
    }
    for name, ranking in rounds.items():
        told = ", ".join(f"{who} {number(mean) if math.isfinite(mean) else 'failed'}" for who, mean in ranking or [])
        lines += ["", f"{name}: {told}."]
    return [*lines, ""]


def page(study: Study) -> str:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["rows"]
    rows, parts = complete(study), [INTRODUCTION]
    parts += ["## The table", "", *table(study, published), ""]
    if len(rows) < len(study.envs):
        parts += [f"{len(rows)} of {len(study.envs)} rows are complete; the others are in progress or not begun.", ""]
    better = shortfalls(study, published)
    if better:
        parts += ["## Where others are better", "", *better, ""]
    parts += ["## Every seed", ""] if rows else []
    for env, (best, _) in rows.items():
        parts += details(study, env, best)
    tried = ", ".join(f"`{name}`" for name in candidates("Hopper-v5"))
    parts += [f"The candidates of an env, as far as they fit it: {tried}."]
    return "\n".join(parts) + "\n"
