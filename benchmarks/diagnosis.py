"""Does `surefoot diagnose` name the cause of illness, and is it silent about health?

    python benchmarks/diagnosis.py --seeds 0 1 2               # ill runs and tuned presets of at most 1M steps
    python benchmarks/diagnosis.py --seeds 3 --ill             # the ill runs only
    python benchmarks/diagnosis.py --seeds 3 --ill --unseen    # the same illnesses on envs that no rule was written on
    python benchmarks/diagnosis.py --report                    # what the stored results say

Results are merged into benchmarks/results/diagnosis.json as they arrive, and what is there is skipped. The file names
the rules that gave them; after a change to the rules it starts anew. Trained runs are kept in `--runs DIR`, if given,
so that changed rules can be tried on them without training.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "diagnosis.json"
RULES = ("rules", "endings", "rule", "memory", "watch", "diagnosis")  # modules of surefoot/analysis that decide
MOST_STEPS = 1_000_000
GIVEN = ("homework", "family")  # presets that are not tuned for one env


class Outcome(TypedDict):
    group: str  # the line of the report that it counts in
    expected: list[str]  # rules of which one must come first; none: there must be no advice
    found: list[str]
    first: str | None  # the first advice, in words
    right: bool


class Results(TypedDict):
    rules: str  # what `rules_version` said
    runs: dict[str, Outcome]


def rules_version() -> str:
    """Changes with the code of the rules, but not with their comments."""
    sources = (ROOT / "surefoot" / "analysis" / f"{name}.py" for name in RULES)
    code = "\n".join(ast.dump(ast.parse(source.read_text())) for source in sources)
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def read_results() -> Results:
    """Those of the present rules."""
    stored: Results | None = json.loads(RESULTS.read_text()) if RESULTS.exists() else None
    return stored if stored and stored["rules"] == rules_version() else {"rules": rules_version(), "runs": {}}


def healthy() -> list[str]:
    """Tuned presets of at most a million steps."""
    from surefoot.training.config.presets import list_presets, load_preset

    found = {name: load_preset(name) for name in list_presets() if name.split("/")[0] not in GIVEN}
    return [name for name, preset in found.items() if "env" in preset and preset["total_steps"] <= MOST_STEPS]


def work(arguments: argparse.Namespace) -> Iterator[str]:
    """Names of runs: `healthy/CartPole-v1/ppo/0`, `ill/CartPole-v1/clip_10/0`."""
    from benchmarks.ill_runs import KNOWN, UNSEEN, ill_runs

    both = not (arguments.ill or arguments.healthy)
    for seed in arguments.seeds:
        if arguments.ill or both:
            yield from (f"ill/{name}/{seed}" for name in ill_runs(UNSEEN if arguments.unseen else KNOWN))
        if arguments.healthy or both:
            yield from (f"healthy/{name}/{seed}" for name in healthy())


def train(name: str, where: str) -> None:
    import surefoot
    from benchmarks import ill_runs

    kind, group, what, seed = name.split("/")
    if kind == "ill":
        patient, case = ill_runs.ill_runs(ill_runs.KNOWN + ill_runs.UNSEEN)[f"{group}/{what}"]
        ill_runs.train(patient, case, int(seed), where)
    else:
        how = {"seed": int(seed), "threads": 1, "eval_episodes": 0}
        surefoot.train(preset=f"{group}/{what}", run_dir=where, progress=False, **how)


def measure(name: str, runs: Path) -> Outcome:
    """Ask what is wrong with a run, which is trained if it is not there."""
    from benchmarks.ill_runs import KNOWN, UNSEEN, ill_runs
    from surefoot.analysis.diagnosis import diagnose
    from surefoot.runs import Run

    kind, group, what, _ = name.split("/")
    if not (runs / name).exists():
        unfinished = runs / "unfinished" / name
        shutil.rmtree(unfinished, ignore_errors=True)
        train(name, str(unfinished))
        (runs / name).parent.mkdir(parents=True, exist_ok=True)
        unfinished.rename(runs / name)
    expected = list(ill_runs(KNOWN + UNSEEN)[f"{group}/{what}"][1].advice) if kind == "ill" else []
    advice = diagnose(Run(runs / name))
    found = [one.rule for one in advice]
    right = found[0] in expected if expected and found else found == expected
    return {
        "group": group_of(name),
        "expected": expected,
        "found": found,
        "first": advice[0].text if advice else None,
        "right": right,
    }


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes with one thread each, which import torch only once."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def group_of(name: str) -> str:
    from benchmarks.ill_runs import KNOWN, ill_runs

    kind, env, what, seed = name.split("/")
    seeds = f"seeds {int(seed) // 3 * 3} to {int(seed) // 3 * 3 + 2}"
    if kind == "healthy":
        return f"tuned presets, {seeds}"
    envs = "known" if f"{env}/{what}" in ill_runs(KNOWN) else "unseen"
    return f"{'left alone' if what == 'left_alone' else 'made ill'}, {envs} envs, {seeds}"


def table(results: Results) -> list[str]:
    """How many of each group got the right advice: the table of docs/diagnose.md."""
    groups: dict[str, list[bool]] = {}
    for outcome in results["runs"].values():
        groups.setdefault(outcome["group"], []).append(outcome["right"])
    lines = [f"| {group} | {sum(right)} of {len(right)} |" for group, right in sorted(groups.items())]
    return ["| runs | right |", "|---|---|", *lines]


def failures(results: Results) -> list[str]:
    """In words, as docs/diagnose.md lists them."""
    wrong = {name: one for name, one in results["runs"].items() if not one["right"]}
    words = {name: [", ".join(one[key]) or "nothing" for key in ("expected", "found")] for name, one in wrong.items()}
    return [f"- `{name}`: expected {expected}, found {found}" for name, (expected, found) in words.items()]


def report(results: Results) -> None:
    print(f"Rules {results['rules']}\n", *table(results), "", *failures(results), sep="\n")
    if results["rules"] != rules_version():
        print(f"The rules have changed since: they are {rules_version()} now.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ill", action="store_true", help="only runs made ill on purpose")
    parser.add_argument("--healthy", action="store_true", help="only tuned presets")
    parser.add_argument("--only", default="", help="only runs whose name contains this")
    parser.add_argument("--unseen", action="store_true", help="make other envs ill")
    parser.add_argument("--runs", type=Path, help="keep the trained runs in this folder, and use those that are there")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    if arguments.report:
        report(json.loads(RESULTS.read_text()))
        return
    results = read_results()
    todo = [name for name in work(arguments) if name not in results["runs"] and arguments.only in name]
    with tempfile.TemporaryDirectory() as folder, workers(arguments.jobs) as pool:
        runs = (arguments.runs or Path(folder)).absolute()
        asked = {pool.submit(measure, name, runs): name for name in todo}
        for done in as_completed(asked):
            name, outcome = asked[done], done.result()
            print(f"{'right' if outcome['right'] else 'WRONG'} {name} {outcome['found']}", flush=True)
            results["runs"][name] = outcome
            results["runs"] = dict(sorted(results["runs"].items()))
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    report(results)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
