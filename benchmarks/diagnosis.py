"""Does `surefoot diagnose` name the cause of illness, and is it silent about health?

    python benchmarks/diagnosis.py --seeds 0 1 2               # ill runs and tuned presets of at most 1M steps
    python benchmarks/diagnosis.py --seeds 3 --ill --jobs 2    # the ill runs only
    python benchmarks/diagnosis.py --seeds 3 --ill --unseen    # the same illnesses on envs that no rule was written on
    python benchmarks/diagnosis.py --report                    # what the stored results say

Results are merged into benchmarks/results/diagnosis.json as they arrive, and what is there is skipped. Every run is a
separate process with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "diagnosis.json"
MOST_STEPS = 1_000_000
GIVEN = ("homework", "family")  # presets that are not tuned for one env


class Outcome(TypedDict):
    expected: list[str]  # rules of which one must come first; none: there must be no advice
    found: list[str]
    first: str | None  # the first advice, in words
    right: bool


def healthy() -> list[str]:
    """Tuned presets of at most a million steps."""
    from surefoot.training.config.presets import list_presets, load_preset

    found = {name: load_preset(name) for name in list_presets() if name.split("/")[0] not in GIVEN}
    return [name for name, preset in found.items() if "env" in preset and preset["total_steps"] <= MOST_STEPS]


def work(arguments: argparse.Namespace) -> Iterator[str]:
    """Names of runs: `healthy/CartPole-v1/ppo/0`, `ill/known/clip_10/0`."""
    from benchmarks.ill_runs import KNOWN, cases

    both = not (arguments.ill or arguments.healthy)
    envs = "unseen" if arguments.unseen else "known"
    for seed in arguments.seeds:
        if arguments.ill or both:
            yield from (f"ill/{envs}/{case.name}/{seed}" for case in cases(*KNOWN))
        if arguments.healthy or both:
            yield from (f"healthy/{name}/{seed}" for name in healthy())


def measure(name: str) -> Outcome:
    """Train one run and ask what is wrong with it."""
    import surefoot
    from benchmarks import ill_runs
    from surefoot.analysis.diagnosis import diagnose

    kind, group, what, seed = name.split("/")
    with tempfile.TemporaryDirectory() as folder:
        where = f"{folder}/run"
        if kind == "ill":
            patients = ill_runs.KNOWN if group == "known" else ill_runs.UNSEEN
            case = next(case for case in ill_runs.cases(*patients) if case.name == what)
            run, expected = ill_runs.train(case, *patients, int(seed), where), list(case.advice)
        else:
            how = {"seed": int(seed), "threads": 1, "eval_episodes": 0}
            run = surefoot.train(preset=f"{group}/{what}", run_dir=where, progress=False, **how)
            expected = []
        advice = diagnose(run)
    found = [one.rule for one in advice]
    right = found[0] in expected if expected and found else found == expected
    return {"expected": expected, "found": found, "first": advice[0].text if advice else None, "right": right}


def in_a_process(name: str) -> tuple[str, Outcome | None]:
    words = [sys.executable, __file__, "--one", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return name, None
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return name, outcome


def report(results: dict[str, Outcome]) -> None:
    groups: dict[str, list[Outcome]] = {}
    for name, outcome in results.items():
        kind, group, _, seed = name.split("/")
        seeds = "seeds 0 to 2" if int(seed) < 3 else "later seeds"
        groups.setdefault(f"{f'ill, {group} envs' if kind == 'ill' else 'healthy'}, {seeds}", []).append(outcome)
    for title, outcomes in sorted(groups.items()):
        print(f"{title}: {sum(outcome['right'] for outcome in outcomes)} of {len(outcomes)} right")
    for name, outcome in results.items():
        if not outcome["right"]:
            print(f"  {name}: expected {outcome['expected'] or 'nothing'}, found {outcome['found'] or 'nothing'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ill", action="store_true", help="only runs made ill on purpose")
    parser.add_argument("--healthy", action="store_true", help="only tuned presets")
    parser.add_argument("--only", default="", help="only runs whose name contains this")
    parser.add_argument("--unseen", action="store_true", help="make other envs ill")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    results: dict[str, Outcome] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.report:
        todo = [name for name in work(arguments) if name not in results and arguments.only in name]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for done in as_completed([pool.submit(in_a_process, name) for name in todo]):
                name, outcome = done.result()
                if outcome is not None:
                    print(f"{'right' if outcome['right'] else 'WRONG'} {name} {outcome['found']}", flush=True)
                    results[name] = outcome
                    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    report(results)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
