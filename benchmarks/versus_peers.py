"""Training speed compared with Stable-Baselines3, sb3-contrib, SBX and plain JAX: same machine, same hyperparameters.

    sh benchmarks/make_peers.sh FOLDER        # their environments, once
    python benchmarks/versus_peers.py --sb3-python FOLDER/sb3/bin/python --sbx-python FOLDER/sbx/bin/python
        --jax-python FOLDER/jax/bin/python --jax-program purejax_ppo.py [--before-python …] [--rounds 3] [--only NAME …]

An interpreter with an earlier surefoot (--before-python) makes that version a peer in every setting, to show the cost
of a change. Peers without an interpreter are left out. Every run is a separate process. Within a round the sides
alternate, and each round starts with another side, because a machine's speed drifts; ratios are taken round by round.

The result is env steps over the wall time from the first env step to the last update. On our side that includes
logging, TensorBoard events and saving; the peers log nothing. Imports and compilation are reported separately. The
peers in PyTorch get one thread, which is best for networks this small; those in JAX use as many as they want. Our side
may use the flags that a user with two cores may type: the candidates of a setting are tried before the rounds, and the
fastest is used (or --flags). Memory is the highest resident set of a process plus those of its children, each counted
in full.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import machine
from peers.settings import SETTINGS, Setting

TRIES = 2  # per candidate
HERE = Path(__file__).resolve().parent
NAMES = {"surefoot": "surefoot", "sb3": "SB3", "sb3_contrib": "sb3-contrib", "sbx": "SBX", "jax": "plain JAX"}
NAMES["before"] = "surefoot before"


@dataclass(frozen=True)
class Side:
    """The command of one side: words to execute, and how a reader would type them."""

    words: list[str]
    typed: str


class Sides:
    """The commands of every side."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.pythons = {"sb3": arguments.sb3_python, "sb3_contrib": arguments.sb3_python}
        self.pythons |= {"sbx": arguments.sbx_python, "jax": arguments.jax_python if arguments.jax_program else None}
        self.pythons["before"] = arguments.before_python
        self.program = arguments.jax_program
        self.scale = arguments.scale

    def there(self, setting: Setting) -> list[str]:
        return [peer for peer in (*setting.peers, "before") if self.pythons[peer]]

    def steps(self, setting: Setting, side: str) -> int:
        rollout = setting.num_envs * setting.rollout_length
        return max(2, round(setting.steps[side] * self.scale / rollout)) * rollout

    def ours(self, setting: Setting, flags: str, seed: int, part: float = 1.0) -> Side:
        rollout = setting.num_envs * setting.rollout_length
        steps = max(2, round(self.steps(setting, "surefoot") * part / rollout)) * rollout
        words = [*setting.our_words(steps, seed), *shlex.split(flags), "--json"]
        return Side([sys.executable, "-m", "surefoot.cli.main", *words[1:]], shlex.join(words))

    def of(self, setting: Setting, flags: str, seed: int) -> dict[str, Side]:
        """Every side that takes part in a setting."""
        found = {"surefoot": self.ours(setting, flags, seed)}
        for peer in self.there(setting):
            found[peer] = self.before(setting, flags, seed) if peer == "before" else self.theirs(setting, peer, seed)
        return found

    def before(self, setting: Setting, flags: str, seed: int) -> Side:
        """Our own command, run by the other interpreter."""
        now = self.ours(setting, flags, seed)
        return Side([self.pythons["before"], *now.words[1:]], now.typed)

    def theirs(self, setting: Setting, peer: str, seed: int) -> Side:
        steps = self.steps(setting, peer)
        if peer == "jax":
            words = [str(HERE / "peers" / "plain_jax.py"), str(Path(self.program).resolve())]
            words.append(json.dumps(setting.jax_spec(steps, seed)))
            typed = ["python", "benchmarks/peers/plain_jax.py", Path(self.program).name, words[-1]]
        else:
            words = [str(HERE / "peers" / "stable_baselines.py"), peer, json.dumps(setting.their_spec(steps, seed))]
            typed = ["python", "benchmarks/peers/stable_baselines.py", *words[1:]]
        return Side([self.pythons[peer], *words], shlex.join(typed))


def run(side: Side, *, threads_free: bool = False) -> dict[str, Any]:
    """The last line of its output, with the wall time and the memory of the whole process."""
    environment = {**os.environ}
    if side.words[0] == sys.executable:
        environment["PYTHONPATH"] = str(machine.ROOT)
    if not threads_free:
        environment["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = perf_counter()
        process = subprocess.Popen(side.words, stdout=out, stderr=err, cwd=folder, env=environment)
        children: dict[int, int] = {}  # kilobytes
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, children, over))
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        over.set()
        watcher.join()
        out.seek(0)
        err.seek(0)
        said, complained = out.read().decode(), err.read().decode()
    if process.returncode:
        raise SystemExit(f"{side.typed}\nfailed ({process.returncode}):\n{complained[-4000:]}")
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    unit = 1 if sys.platform == "darwin" else 1024
    result |= {"wall_seconds": wall, "max_rss_mb": (usage.ru_maxrss * unit + sum(children.values()) * 1024) / 2**20}
    return result


def _watch(parent: int, children: dict[int, int], over: threading.Event) -> None:
    """Records the highest resident sets of a process's children, four times a second."""
    while not over.wait(0.25):
        for pid in _children(parent):
            try:
                lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
            except OSError:
                continue
            peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
            children[pid] = max(children.get(pid, 0), peak)


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            own = [int(word) for word in file.read_text().split()]
        except OSError:
            continue
        found += own + [pid for child in own for pid in _children(child)]
    return found


def choose(sides: Sides, setting: Setting) -> tuple[str, dict[str, float]]:
    """(the fastest flags, the speed of each)."""
    tries: dict[str, list[float]] = {flags: [] for flags in setting.candidates}
    for seed in range(TRIES):
        for flags, found in tries.items():
            side = sides.ours(setting, flags, seed, part=0.25)
            found.append(run(side, threads_free=True)["steps_per_second"])
    speeds = {flags: sum(found) / TRIES for flags, found in tries.items()}
    for flags, speed in speeds.items():
        print(f"  tried {flags}: {speed:,.0f} steps/s", flush=True)
    return max(speeds, key=speeds.__getitem__), speeds


def compare(sides: Sides, setting: Setting, flags: str | None, rounds: int) -> dict[str, Any]:
    peers = sides.there(setting)
    print(f"\n{setting.name}: {setting.says}", flush=True)
    tried: dict[str, float] = {}
    if flags is None:
        flags, tried = choose(sides, setting)
    commands = sides.of(setting, flags, 0)
    for side in commands.values():
        print(f"  $ {side.typed}", flush=True)
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        order = list(commands)
        order = order[number % len(order) :] + order[: number % len(order)]  # each round starts with another side
        results = {}
        for name in order:
            side = sides.of(setting, flags, number)[name]
            results[name] = slim(run(side, threads_free=name in ("surefoot", "before", "jax", "sbx")))
            sleep(0.2)
        found.append(results)
        speeds = "  ".join(f"{NAMES[name]} {results[name]['steps_per_second']:,.0f}" for name in commands)
        print(f"  round {number}: {speeds}", flush=True)
    return {
        "setting": setting.says,
        "commands": {name: side.typed for name, side in commands.items()},
        "flags_tried": tried,
        "sides": {name: summarize([results[name] for results in found]) for name in commands},
        "ratios": {
            peer: machine.spread(
                [r["surefoot"]["steps_per_second"] / r[peer]["steps_per_second"] for r in found],
            )
            for peer in peers
        },
        "goals": {peer: goal for peer, goal in setting.goals.items() if peer in peers},
        "rounds": found,
    }


def slim(result: dict[str, Any]) -> dict[str, Any]:
    """The part of a run's result that is kept."""
    names = ("total_steps", "seconds", "steps_per_second", "wall_seconds", "max_rss_mb", "train_return", "time_split")
    names += ("engine", "import_seconds", "setup_seconds", "compile_seconds", "versions")
    return {name: result[name] for name in names if name in result}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"steps_per_second": machine.spread([run["steps_per_second"] for run in runs])}
    found["max_rss_mb"] = machine.spread([run["max_rss_mb"] for run in runs])
    found["seconds_outside_training"] = machine.spread([run["wall_seconds"] - run["seconds"] for run in runs])
    if "compile_seconds" in runs[0]:
        found["compile_seconds"] = machine.spread([run["compile_seconds"] for run in runs])
    return found


def table(result: dict[str, Any]) -> list[str]:
    lines = machine.head(
        "setting", "surefoot, steps/s", "peer", "steps/s", "ratio, median (range)", "goal", "memory, MB", "start-up, s"
    )
    for found in result["settings"].values():
        ours = found["sides"]["surefoot"]
        for peer, ratio in found["ratios"].items():
            theirs, goal = found["sides"][peer], found["goals"].get(peer)
            lines.append(
                machine.row(
                    found["setting"],
                    f"{ours['steps_per_second']['median']:,.0f}",
                    NAMES[peer],
                    f"{theirs['steps_per_second']['median']:,.0f}",
                    "**{median:{digits}}** ({low:{digits}} to {high:{digits}})".format(
                        **ratio, digits=".2f" if peer == "before" else ".1f"
                    ),
                    "–" if goal is None else f"{goal:g} {'✓' if ratio['median'] >= goal else '✗'}",
                    f"{ours['max_rss_mb']['median']:.0f} / {theirs['max_rss_mb']['median']:.0f}",
                    f"{ours['seconds_outside_training']['median']:.1f} / "
                    f"{theirs['seconds_outside_training']['median']:.1f}",
                )
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3-python", help="an interpreter that has stable-baselines3 and sb3-contrib")
    parser.add_argument("--sbx-python", help="one that has sbx-rl")
    parser.add_argument("--jax-python", help="one that has jax")
    parser.add_argument("--jax-program", help="the PPO in plain JAX (see benchmarks/peers/plain_jax.py)")
    parser.add_argument("--before-python", help="one that has an earlier surefoot: what a change costs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps of every side [1]")
    parser.add_argument("--only", nargs="*", metavar="NAME", help=", ".join(setting.name for setting in SETTINGS))
    parser.add_argument("--flags", help="what our side adds, instead of trying a setting's candidates")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "versus_peers.json", metavar="FILE.json")
    arguments = parser.parse_args()
    if bool(arguments.jax_python) != bool(arguments.jax_program):
        parser.error("--jax-python and --jax-program go together")
    unknown = set(arguments.only or ()) - {setting.name for setting in SETTINGS}
    if unknown:
        parser.error(f"there is no setting {', '.join(sorted(unknown))}")
    sides = Sides(arguments)
    result: dict[str, Any] = {"machine": machine.describe(), "scale": arguments.scale, "settings": {}}
    for setting in SETTINGS:
        if (arguments.only and setting.name not in arguments.only) or not sides.there(setting):
            continue
        result["settings"][setting.name] = compare(sides, setting, arguments.flags, arguments.rounds)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")  # save after every setting
    if not result["settings"]:
        parser.error("nothing to compare with: give the interpreter of a peer")
    machine.write(result, table(result), arguments.out)


if __name__ == "__main__":
    main()
