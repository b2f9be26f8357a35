"""A sweep on a Ray cluster of three nodes, of which one is killed while runs are under way; another one is added.

    python benchmarks/ray_sweep.py [--runs 30] [--out FILE.json]

The cluster is on this machine, in a network namespace of its own with only loopback (this needs root, or a system on
which users may make namespaces). Checks that every run is there once and has the bytes of a sweep without Ray. Then a
second sweep is stopped by Ctrl-C, continued, killed, and finished without Ray: the same bytes again, and no process is
left after the kill. Keeps the outcome in benchmarks/results/ray_sweep.json, and exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import machine

from surefoot.errors import SurefootError
from surefoot.runs import Run, RunDirectory
from surefoot.sweep.ray_runner import HOMES

ENV = """
import time
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Slow(CartPoleEnv):
    def step(self, action):
        time.sleep(0.001)
        return super().step(action)
"""
INSIDE = "SUREFOOT_RAY_SWEEP_INSIDE"  # set in the network namespace
LIMIT = 1200.0  # seconds for any one thing; the machine may be busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, metavar="N", help="runs of the sweep [30]")
    parser.add_argument("--steps", type=int, default=6000, metavar="N", help="steps of each, a millisecond each [6000]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "ray_sweep.json", metavar="FILE.json")
    arguments = parser.parse_args()
    out: Path = arguments.out.absolute()
    if INSIDE not in os.environ:
        sys.exit(subprocess.run(in_a_namespace([sys.executable, *sys.argv])).returncode)
    with tempfile.TemporaryDirectory(prefix="surefoot-on-ray-") as folder:
        os.environ["TMPDIR"] = folder  # Ray, and copies on the nodes
        os.chdir(folder)
        Path("slow.py").write_text(ENV, encoding="utf-8")
        described = machine.describe()
        result = {"machine": described, "runs": arguments.runs, "steps": arguments.steps}
        result |= measure(arguments.runs, arguments.steps)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["passed"] else 1)


def in_a_namespace(command: Sequence[str]) -> list[str]:
    """The command with no network but loopback."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    return [*unshare, "sh", "-c", f'ip link set lo up && {INSIDE}=1 exec "$@"', "sh", *command]


def measure(runs: int, steps: int) -> dict[str, Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        first = lose_a_node(cluster, nodes[0], runs, steps)
        second = stop_and_kill(cluster, steps)
    finally:
        cluster.shutdown()
    clock = time.perf_counter()
    alone = sweep(runs, steps, "alone")
    if alone.wait() != 0:
        raise SystemExit("the sweep without Ray failed")
    first["seconds without Ray"] = round(time.perf_counter() - clock, 1)
    first["differ from local"] = differing("ray", "alone")
    second["differ from local"] = differing("stopped", "alone")
    sound = first["done"] == first["directories"] == runs and first["lost"] > 0
    ended = second["exit after Ctrl-C"] == 130 and second["processes left"] == 0 and second["exit at last"] == 0
    equal = not first["differ from local"] and not second["differ from local"]
    return {"passed": sound and ended and equal, "a node killed, one added": first, "stopped, then killed": second}


def lose_a_node(cluster: Any, victim: Any, runs: int, steps: int) -> dict[str, Any]:
    clock = time.perf_counter()
    with open("ray.txt", "w", encoding="utf-8") as said:
        process = sweep(runs, steps, "ray", cluster.address, stdout=said)
        wait_for(lambda: counted("ray")["done"] >= runs // 10 and has_a_saved_run(victim, "ray"), process)
        cluster.remove_node(victim, allow_graceful=False)
        killed_at = counted("ray")
        wait_for(lambda: "lost its node" in Path("ray.txt").read_text(encoding="utf-8"), process)
        cluster.add_node(num_cpus=1)
        code = process.wait(LIMIT)
    lines = Path("ray.txt").read_text(encoding="utf-8").splitlines()
    outputs = [path.read_text(encoding="utf-8") for path in Path("ray").rglob("output.txt")]
    return {
        "exit code": code,
        "killed when": killed_at,
        "lost": sum("lost its node" in line for line in lines),
        "said of it": next((line.partition("lost its node")[2] for line in lines if "lost its node" in line), ""),
        "continued from a checkpoint": sum("resum" in text for text in outputs),
        "done": counted("ray")["done"],
        "directories": len(list(Path("ray").rglob("manifest.json"))),
        "seconds": round(time.perf_counter() - clock, 1),
    }


def stop_and_kill(cluster: Any, steps: int) -> dict[str, Any]:
    process = sweep(3, steps, "stopped", cluster.address)
    wait_for(lambda: all_saved("stopped", 3), process)
    process.send_signal(signal.SIGINT)
    code = process.wait(LIMIT)
    saved = sum((directory / "checkpoints" / "LATEST").exists() for directory in directories("stopped"))
    process = sweep(3, steps, "stopped", cluster.address)
    before = {run.directory.path: run.checkpoints.latest for run in map(read, directories("stopped"))}
    wait_for(lambda: all(read(path).checkpoints.latest != step for path, step in before.items()), process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + LIMIT / 10
    while zygotes() and time.monotonic() < deadline:
        time.sleep(0.5)
    left = len(zygotes())
    last = sweep(3, steps, "stopped").wait(LIMIT)
    return {"exit after Ctrl-C": code, "saved": saved, "processes left": left, "exit at last": last}


def sweep(runs: int, steps: int, out: str, address: str | None = None, stdout: Any = None) -> subprocess.Popen[bytes]:
    flags = ["--preset=none", f"--total-steps={steps}", "--rollout-length=64", "--num-envs=2", "--eval-episodes=1"]
    flags += ["--checkpoint-every=500", f"--seeds=0..{runs - 1}", f"--out={out}"]
    flags += ["--on=ray", f"--address={address}"] if address else ["--jobs=3"]
    return subprocess.Popen([sys.executable, "-m", "surefoot", "sweep", "--env", "slow.py:Slow", *flags], stdout=stdout)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the sweep ended too early, or does not go on (exit code {process.poll()})")
        time.sleep(0.1)


def directories(folder: str) -> list[Path]:
    return sorted(path.parent for path in Path(folder).rglob("manifest.json"))


def read(path: Path) -> Run:
    return Run(RunDirectory(path))


def counted(folder: str) -> dict[str, int]:
    states = [RunDirectory(path).read_status().get("state") for path in directories(folder)]
    return {state: states.count(state) for state in ("done", "running")}


def all_saved(folder: str, number: int) -> bool:
    """Whether this many runs are under way, and a checkpoint of each has been copied back."""
    running = [path for path in directories(folder) if RunDirectory(path).read_status().get("state") == "running"]
    return len(running) == number and all((path / "checkpoints" / "LATEST").exists() for path in running)


def has_a_saved_run(node: Any, folder: str) -> bool:
    """Whether the node carries out a run of which a checkpoint has been copied back."""
    raylet = node.all_processes["raylet"][0].process.pid
    for home in {link for pid in below(raylet) for link in opened(pid) if link.name.startswith(HOMES)}:
        with suppress(OSError, SurefootError):  # not there yet, or between two runs
            seed = read(home / "run").config["seed"]
            copies = [path for path in directories(folder) if path.name.endswith(f"-s{seed}")]
            running = [path for path in copies if RunDirectory(path).read_status().get("state") == "running"]
            return any((path / "checkpoints" / "LATEST").exists() for path in running)
    return False


def below(ancestor: int) -> list[int]:
    """The process and all that it has started, directly or not."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            parent = status.read_text(encoding="utf-8", errors="replace").partition("PPid:")[2].split()[0]
            children.setdefault(int(parent), []).append(int(status.parent.name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found


def opened(pid: int) -> list[Path]:
    """The folders that a process holds, as a runner does its home."""
    found = []
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(Path(os.readlink(link)))
    return found


def differing(folder: str, other: str) -> list[str]:
    """The runs whose metrics or weights are not the same bytes."""
    found = []
    for path in directories(folder):
        last = f"checkpoints/{read(path).checkpoints.latest}"
        files = ("metrics.jsonl", f"{last}/policy.safetensors", f"{last}/state.safetensors")
        twin = Path(other) / path.relative_to(folder)
        if not all((twin / file).is_file() and same(path / file, twin / file) for file in files):
            found.append(path.name)
    return found


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def zygotes() -> list[int]:
    """The processes of runs, and those that start them, in this namespace."""
    here = os.readlink("/proc/self/ns/net")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns" / "net") == here and b"zygote" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
