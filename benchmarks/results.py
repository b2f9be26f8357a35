"""The table of learning results: MuJoCo-v5 and Box2D, the best of the seven algorithms, beside peers and publications.

    python benchmarks/results.py --peers DIR                     # everything; DIR: what make_peers.sh made
    python benchmarks/results.py --peers DIR --minutes 60        # a slice: stop after an hour, go on next time
    python benchmarks/results.py --env Hopper-v5 --side ours     # one row, without the peers
    python benchmarks/results.py --page-only                     # rewrite the page from the stored results
    python benchmarks/results.py --presets                       # write the winners as presets
    python benchmarks/results.py --scale 0.01 --out /tmp/try.json --work /tmp/try --env Reacher-v5   # a quick try

For each env, every candidate (candidates.py) is trained for 300k steps on seed 100, and the best eight on seeds 101 and
102 too. The three best of these, and the slow starters of candidates.py, are trained for all steps on the same seeds,
and the best of them is the row's. It is reported on seeds 0 to 4, which took no part in the choice. The peers get the
same steps and seeds, with the RL Zoo's settings (peers/zoo.py). A score is the mean return of 20 greedy episodes with
the final weights. Runs have one thread, two at a time.

The study takes days. Stop it in any way and call it again: runs in progress go on where they were. Scores are written
to benchmarks/results/results.json as they arrive, and docs/results.md is written from that file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import machine
from candidates import SHORT_STEPS, SLOW_STARTERS, STEPS, Candidate, candidates
from jobs import Job, Outcome, carry_out, digest, forget, only_one, our_run, our_words, write_json
from peers.zoo import SETTINGS as ZOO
from results_page import page

EPISODES = 20
CHOICE_SEEDS, SEEDS = (100, 101, 102), (0, 1, 2, 3, 4)
PROMISING = 8  # candidates that get all seeds of the choice in the first round
KEEP = 3  # of these are trained for all steps
LEAST = 16_384  # steps of a quick try: the longest rollout
PEERS = {"sb3-ppo": "ppo", "sb3-trpo": "trpo"}
SIDES = ("ours", *PEERS)
OUT = machine.RESULTS / "results.json"
PAGE = machine.ROOT / "docs" / "results.md"
PRESETS = machine.ROOT / "surefoot" / "training" / "config" / "presets"
PEER_SCRIPT = Path(__file__).parent / "peers" / "sb3_zoo.py"
Runs: TypeAlias = dict[str, dict[str, Outcome]]  # {"Hopper-v5 ppo 1000000 3f2a…": {seed: outcome}}


@dataclass(frozen=True)
class Wanted:
    """A run that the study needs. `who`: a candidate's name, or a peer's."""

    env: str
    who: str
    steps: int
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        if self.who in PEERS:
            return ZOO[PEERS[self.who]][self.env]
        return candidates(self.env)[self.who].settings

    @property
    def key(self) -> str:
        """With other settings it is another run."""
        return f"{self.env} {self.who} {self.steps} {digest(self.settings)}"


@dataclass
class Study:
    """What has been found so far, and what follows from it."""

    runs: Runs
    scale: float = 1.0
    sides: tuple[str, ...] = SIDES
    envs: tuple[str, ...] = tuple(STEPS)
    seeds: tuple[int, ...] = SEEDS

    def steps(self, env: str, *, short: bool = False) -> int:
        least, most = (LEAST, SHORT_STEPS) if short else (2 * LEAST, STEPS[env])
        return max(least, int(most * self.scale))

    def outcome(self, run: Wanted) -> Outcome | None:
        return self.runs.get(run.key, {}).get(str(run.seed))

    def outcomes(self, env: str, who: str) -> dict[int, Outcome]:
        """Of the runs that are reported, by seed."""
        found = {seed: self.outcome(Wanted(env, who, self.steps(env), seed)) for seed in self.seeds}
        return {seed: one for seed, one in found.items() if one is not None}

    def note(self, run: Wanted, found: Outcome) -> None:
        self.runs.setdefault(run.key, {})[str(run.seed)] = found

    def scores(self, env: str, who: str, steps: int, seeds: tuple[int, ...]) -> list[float] | None:
        """None if one is missing. A run that failed has the score −∞."""
        found = [self.outcome(Wanted(env, who, steps, seed)) for seed in seeds]
        if any(one is None for one in found):
            return None
        return [one.get("score", -math.inf) for one in found if one is not None]

    def ranking(
        self, env: str, names: list[str], steps: int, seeds: tuple[int, ...] = CHOICE_SEEDS
    ) -> list[tuple[str, float]] | None:
        """(name, mean over the seeds), the best first; None as long as one is missing."""
        means: dict[str, float] = {}
        for name in names:
            scores = self.scores(env, name, steps, seeds)
            if scores is None:
                return None
            means[name] = sum(scores) / len(scores)
        return sorted(means.items(), key=lambda item: -item[1])

    def scouts(self, env: str) -> list[tuple[str, float]] | None:
        return self.ranking(env, list(candidates(env)), self.steps(env, short=True), CHOICE_SEEDS[:1])

    def first_round(self, env: str) -> list[tuple[str, float]] | None:
        scouts = self.scouts(env)
        return scouts and self.ranking(env, [name for name, _ in scouts[:PROMISING]], self.steps(env, short=True))

    def finalists(self, env: str) -> list[str]:
        """Those of the second round, as soon as they are known."""
        best = [name for name, _ in (self.first_round(env) or [])[:KEEP]]
        return best and best + [name for name in SLOW_STARTERS if name in candidates(env) and name not in best]

    def second_round(self, env: str) -> list[tuple[str, float]] | None:
        return self.ranking(env, self.finalists(env), self.steps(env)) or None

    def winner(self, env: str) -> str | None:
        second = self.second_round(env)
        return second[0][0] if second and second[0][1] > -math.inf else None

    def wanted(self) -> Iterator[Wanted]:
        """Every run that is known to be needed now, row by row."""
        for env in self.envs:
            if "ours" in self.sides:
                yield from self._ours(env)
            for peer in PEERS:
                if peer in self.sides:
                    yield from (Wanted(env, peer, self.steps(env), seed) for seed in self.seeds)

    def _ours(self, env: str) -> Iterator[Wanted]:
        short, full = self.steps(env, short=True), self.steps(env)
        yield from (Wanted(env, name, short, CHOICE_SEEDS[0]) for name in candidates(env))
        scouts = (self.scouts(env) or [])[:PROMISING]
        yield from (Wanted(env, name, short, seed) for seed in CHOICE_SEEDS[1:] for name, _ in scouts)
        yield from (Wanted(env, name, full, seed) for seed in CHOICE_SEEDS for name in self.finalists(env))
        best = self.winner(env)
        yield from (Wanted(env, best, full, seed) for seed in self.seeds if best is not None)

    def missing(self) -> list[Wanted]:
        return [run for run in self.wanted() if self.outcome(run) is None]

    def command(self, env: str, who: str) -> str:
        """What to type for a run of a candidate."""
        chosen = candidates(env)[who]
        return " ".join(["surefoot", *words_of(env, chosen, self.steps(env))])


def words_of(env: str, chosen: Candidate, steps: int) -> list[str]:
    return our_words(env, chosen.algo, chosen.settings | {"total_steps": steps})


def job_of(run: Wanted, work: Path, peers: Path | None) -> Job:
    where = work / run.env / f"{run.who}-{run.steps}-{digest(run.settings)}" / f"s{run.seed}"
    name = f"{run.key} {run.seed}"
    if run.who not in PEERS:
        return our_run(name, where, words_of(run.env, candidates(run.env)[run.who], run.steps), run.seed, EPISODES)
    assert peers is not None
    spec = {"algo": PEERS[run.who], "env": run.env, "seed": run.seed, "steps": run.steps, "episodes": EPISODES}
    words = (str(peers / "sb3" / "bin" / "python"), str(PEER_SCRIPT), str(where))
    start = (*words, json.dumps(spec | {"settings": run.settings}))
    return Job(name, where, start, start, Path.exists, peer_outcome)


def peer_outcome(folder: Path) -> Outcome | None:
    file = folder / "result.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def measure(study: Study, arguments: argparse.Namespace, facts: Mapping[str, Any]) -> int:
    """Carry out what is missing; returns the signal that stopped it, or 0."""
    by_name: dict[str, Wanted] = {}

    def missing() -> list[Job]:
        found = []
        for run in study.missing():
            job = job_of(run, arguments.work, arguments.peers)
            by_name[job.name] = run
            found.append(job)
        return found

    def ended(job: Job, outcome: Outcome) -> None:
        run = by_name[job.name]
        study.note(run, outcome)
        write_json({**facts, "runs": study.runs}, arguments.out)
        said = outcome.get("error") or f"{outcome['score']:10.1f} {outcome['seconds']:8.0f} s"
        print(f"{run.env:26} {run.who:13} {run.steps:>9,} seed {run.seed:<3} {said}", flush=True)

    with only_one(arguments.work):
        return carry_out(missing, ended, arguments.jobs, arguments.minutes)


def try_again(study: Study, work: Path, peers: Path | None) -> None:
    """Forget the runs that failed."""
    for run in list(study.wanted()):
        found = study.outcome(run)
        if found is not None and "error" in found:
            forget(job_of(run, work, peers or work))
            del study.runs[run.key][str(run.seed)]


def write_presets(study: Study) -> None:
    """The winner of every complete row, as a preset that `surefoot train ENV --algo ALGO` uses.

    A preset that did not come from here stays: whether a winner is better than it must be seen first.
    """
    import tomli_w

    origin = "(benchmarks/results.py)"
    for env in study.envs:
        best = study.winner(env)
        scores = None if best is None else study.scores(env, best, study.steps(env), study.seeds)
        if best is None or scores is None:
            continue
        chosen = candidates(env)[best]
        mean, tried = sum(scores) / len(scores), len(candidates(env))
        settings = {"env": env, "algo": chosen.algo, "total_steps": study.steps(env), **chosen.settings}
        file = PRESETS / env / f"{chosen.algo}.toml"
        if file.exists() and origin not in file.read_text(encoding="utf-8"):
            print(f"{file} was made otherwise, and stays as it is")
            continue
        file.parent.mkdir(exist_ok=True)
        head = f"# The best of {tried} candidates {origin}: {mean:.1f} on average over seeds 0 to 4.\n"
        file.write_text(head + tomli_w.dumps(settings), encoding="utf-8")
        print(f"written to {file}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="ENV")
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--peers", type=Path, metavar="DIR", help="what make_peers.sh made; needed for the peers")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time [2]")
    parser.add_argument("--minutes", type=float, help="stop after so many; the next call goes on")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), metavar="DIR", help="for the runs")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps; needs --out if not 1 [1]")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    parser.add_argument("--page-only", action="store_true", help="train nothing, rewrite the page")
    parser.add_argument("--presets", action="store_true", help="train nothing, write the winners as presets")
    arguments = parser.parse_args()
    only_reads = arguments.page_only or arguments.presets
    if arguments.scale != 1.0 and (arguments.out == OUT or arguments.presets):
        parser.error("with --scale the scores are others; give --out as well, and write no presets")
    if not only_reads and arguments.peers is None and set(arguments.side) & set(PEERS):
        parser.error("the peers need --peers DIR (sh benchmarks/make_peers.sh DIR); or give --side ours")
    arguments.work = arguments.work.absolute()
    arguments.peers = arguments.peers and arguments.peers.absolute()
    return arguments


def main() -> int:
    arguments = parse_arguments()
    stored = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
    if stored.get("scale", arguments.scale) != arguments.scale:
        raise SystemExit(f"{arguments.out} has scores of --scale {stored['scale']:g}; give another --out")
    study = Study(stored.get("runs", {}), arguments.scale, tuple(arguments.side), tuple(arguments.env))
    if arguments.presets:
        write_presets(study)
        return 0
    received = 0
    if not arguments.page_only:
        if arguments.retry:
            try_again(study, arguments.work, arguments.peers)
        facts = {"machine": machine.describe(), "scale": arguments.scale}
        received = measure(study, arguments, facts)
        print(f"{len(study.missing())} runs are missing of those that are known to be needed")
    whole = Study(study.runs, arguments.scale)
    target = PAGE if arguments.out == OUT else arguments.out.with_suffix(".md")
    target.write_text(page(whole), encoding="utf-8")
    print(f"written to {target}")
    return 128 + received if received else 0


if __name__ == "__main__":
    sys.exit(main())
