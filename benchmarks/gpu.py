"""The engine for GPUs, checked and timed on a machine that has one.

    python benchmarks/gpu.py [--only checks|learning|speed] [--beside purejax_ppo.py] [--out FILE.json]

Checks: fused kernels against float64 and PyTorch (`gpu_kernels.py`); one update of every algorithm and kind of policy
equals the torch engine's up to rounding; whole iterations as one graph have the bits of the ordinary loop; the same
seed gives the same bytes twice; a run that is killed and resumed ends with the bytes of one that was not; an encoder
that waits for the device is trained without a graph, and the run says so; 100 runs on the device's CartPole learn what
100 on Gymnasium's do, within 5 %; agents that are trained at once have the bytes of each alone
(`gpu_population.py`, which also measures 256 of them). Most run in several processes at once.
Speed: training steps per second, collecting and learning together, with each engine in turn, logs and checkpoints
included.
Several processes compile the kernels first.
`--beside`: a script that prints the speed of another implementation for settings [(num_envs, rollout_length, epochs,
minibatches, iterations), …]; it runs first, then the speeds, so that a time limit leaves them. Every result is written
at once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gpu_envs
import gpu_kernels
import gpu_layers
import gpu_population
import gpu_simulators
import machine
import numpy as np
import same_learning
import torch
from torch import Tensor

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.api import resume
from surefoot.engine.cuda.engine import CudaEngine
from surefoot.settings import options
from surefoot.training.build.own_encoders import load_encoder
from surefoot.training.config.resolve import resolve
from surefoot.training.trainer import Trainer

PROCESSES = max(1, min(14, (os.cpu_count() or 1) - 2))
CLOSE = 2e-4  # the largest difference of a weight that rounding explains after one update
QUIET: dict[str, Any] = {"preset": "none", "eval_episodes": 0, "progress": False}
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("CartPole-v1", {}),
    "box": ("Pendulum-v1", {"normalize_observations": True, "normalize_rewards": True}),
    "tanh-box": ("Pendulum-v1", {"action_bounds": "tanh", "entropy_coef": 0.01}),
    "beta-box": ("MountainCarContinuous-v0", {"action_bounds": "beta"}),
    "gsde": ("Pendulum-v1", {"std": "gsde"}),
    "gru": ("Acrobot-v1", {"memory": "gru", "memory_size": 16}),
    "lstm": ("CartPole-v1", {"memory": "lstm", "memory_size": 16}),
    "shared": ("MountainCar-v0", {"shared_trunk": True, "activation": "elu"}),
}


class OnHostEnvs(CudaEngine):
    """The engine under a name of its own, which leaves the envs to Gymnasium: the torch engine's rollouts."""

    name = "on_host_envs"
    steps_on_device = False


class StepByStep(CudaEngine):
    """The engine without whole iterations: every part of one is called separately."""

    name = "step_by_step"
    steps_on_device = True

    def iterations(self, *_: Any) -> None:
        return None


class Stop(surefoot.Callback):
    """Ends a run after so many updates, and keeps all metrics and warnings."""

    reads_tensors = False

    def __init__(self, updates: int | None = None) -> None:
        self.updates, self.history, self.warnings = updates, list[dict[str, float]](), list[str]()

    @property
    def metrics(self) -> dict[str, float]:
        return self.history[-1]

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.history.append(metrics)
        if trainer.update == self.updates:
            trainer.stop("enough")

    def on_warning(self, trainer: Trainer, message: str) -> None:
        self.warnings.append(message)


class Clock(surefoot.Callback):
    """The time of each update."""

    reads_tensors = False

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.marks.append((time.perf_counter(), trainer.step))

    @property
    def rate(self) -> float:
        """Steps per second, after the first third."""
        (began, first), (ended, last) = self.marks[len(self.marks) // 3], self.marks[-1]
        return (last - first) / (ended - began)


def updated(
    env: str, algo: str, engine: Any, *, graphs: bool = True, updates: int = 2, **settings: Any
) -> tuple[Tensor, Stop]:
    """(all weights after so many updates, what happened)."""
    stop, fields = Stop(updates), {field.name for field in options(ALGORITHMS[algo].config_type)}
    size = {"max_episode_steps": 40} if "episodes_per_env" in fields else {"rollout_length": 32}
    own = {name: value for name, value in settings.items() if name != "entropy_coef" or name in fields}
    overrides = {"total_steps": 10**6, "num_envs": 16, "engine": engine, "device": "cuda", **size, **own}
    config = resolve(env, algo, preset="none", overrides=overrides)
    trainer = Trainer(config, 3, callbacks=[stop], encoder=load_encoder(config.policy))
    if isinstance(trainer.engines.engine, CudaEngine):
        trainer.engines.engine.recorder.enabled = graphs
    trainer.train()
    assert trainer.device.type == "cuda"
    return torch.cat([p.detach().cpu().flatten() for p in trainer.policy.parameters()]), stop


def in_processes(check: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """(name, what was found) of each task, several at once: Triton compiles for seconds each time."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        yield from pool.map(check, tasks)


def check_updates() -> Iterator[tuple[str, Any]]:
    """Two updates of every algorithm and policy: those of the torch engine, and the same with and without graphs."""
    cases = [(algo, "discrete") for algo in ALGORITHMS] + [("ppo", kind) for kind in POLICIES]
    cases += [("trpo", "gru"), ("ppo-penalty", "box"), ("a2c", "box"), ("a2c", "lstm")]
    yield from in_processes(check_update, cases)


def check_update(case: tuple[str, str]) -> tuple[str, Any]:
    algo, kind = case
    env, settings = POLICIES[kind]
    theirs, reference = updated(env, algo, "torch", **settings)
    ours, stop = updated(env, algo, OnHostEnvs, **settings)
    error = float((ours - theirs).abs().max())
    keys = reference.metrics.keys() == stop.metrics.keys()
    graphs, eager = (updated(env, algo, "cuda", graphs=on, **settings)[0] for on in (True, False))
    same = bool(torch.equal(graphs, eager))
    found = {"error": error, "same_metrics": keys, "graph_equals_eager": same, "said": stop.warnings}
    found["graph_error"] = float((graphs - eager).abs().max())
    found["ratio_error"] = stop.metrics.get("ratio_error", 0.0)
    return f"{algo} {kind}", {**found, "ok": error < CLOSE and keys and found["graph_error"] < CLOSE}


WHOLE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", "ppo", {"learning_rate_schedule": "linear", "clip_ratio_schedule": "linear"}),
    "CartPole, tf32": ("CartPole-v1", "ppo", {"precision": "tf32"}),
    "CartPole, bf16": ("CartPole-v1", "ppo", {"precision": "bf16"}),
    "Pendulum, normalised, adaptive": (
        "Pendulum-v1",
        "ppo",
        {"normalize_observations": True, "normalize_rewards": True, "adaptive_kl": 0.01},
    ),
    "Acrobot, A2C": ("Acrobot-v1", "a2c", {}),
}


def check_wholes() -> Iterator[tuple[str, Any]]:
    """Whole iterations against the ordinary loop; both are stopped while another one is under way."""
    yield from in_processes(check_whole, WHOLE)


def check_whole(name: str) -> tuple[str, Any]:
    env, algo, settings = WHOLE[name]
    (one, whole), (other, apart) = (
        updated(env, algo, engine, updates=40, num_envs=256, **settings) for engine in ("cuda", StepByStep)
    )
    same, told = bool(torch.equal(one, other)), whole.history == apart.history
    ratios = max(metrics["ratio_error"] for metrics in whole.history)
    found = {"same_weights": same, "same_metrics": told, "ratio_error": ratios, "said": whole.warnings}
    return name, {**found, "ok": same and told and ratios < 1e-6}


def train(env: Any, folder: Path, **settings: Any) -> Any:
    base = {
        "seed": 3,
        "num_envs": 64,
        "rollout_length": 32,
        "log_every": 2048,
        "device": "cuda",
        "total_steps": 20 * 2048,
    }
    return surefoot.train(env, run_dir=folder, **{**QUIET, **base, **settings})


def files(run: Any) -> tuple[bytes, bytes]:
    last = max(run.path.glob("checkpoints/*"), key=lambda p: int(p.name) if p.name.isdigit() else -1)
    return (last / "policy.safetensors").read_bytes(), (run.path / "metrics.jsonl").read_bytes()


RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {"num_minibatches": 4}),
    "Pendulum, normalised, adaptive": (
        "Pendulum-v1",
        {"normalize_observations": True, "normalize_rewards": True, "adaptive_kl": 0.01},
    ),
    "Acrobot, GRU": ("Acrobot-v1", {"memory": "gru", "memory_size": 32, "num_minibatches": 4}),
    "CartPole, TRPO": ("CartPole-v1", {"algo": "trpo"}),
    "CartPole, stop_kl, schedules": (
        "CartPole-v1",
        {"stop_kl": 0.01, "learning_rate_schedule": "linear", "clip_ratio_schedule": "linear", "num_minibatches": 4},
    ),
    "frames": (f"{gpu_envs.__file__}:Frames", {"num_envs": 16, "total_steps": 10 * 512, "log_every": 512}),
}


class Die(surefoot.Callback):
    """Ends the run the hard way in the middle of a rollout, some time after a checkpoint."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_rollout(self, trainer: Trainer, rollout: Any) -> None:
        if trainer.update == self.update:
            assert trainer.run is not None
            trainer.run.set_status("running", step=0)
            trainer.save = lambda **_: False  # type: ignore[method-assign] # a killed process saves nothing
            raise KeyboardInterrupt


def check_bytes() -> Iterator[tuple[str, Any]]:
    """The same seed twice, and a run that is killed and resumed."""
    yield from in_processes(check_run, RUNS)


def check_run(name: str) -> tuple[str, Any]:
    env, settings = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / each for each in ("one", "two", "killed")]
        one, two = (train(env, place, **settings) for place in places[:2])
        every = settings.get("log_every", 2048)
        with suppress(KeyboardInterrupt):
            train(env, places[2], checkpoint_every=3 * every, callbacks=[Die(8)], **settings)
        resumed = resume(places[2], progress=False)
        twice, killed = files(one) == files(two), files(one) == files(resumed)
        return name, {"twice": twice, "killed": killed, "engine": one.result["engine"], "ok": twice and killed}


def check_waiting() -> Iterator[tuple[str, Any]]:
    """An encoder that reads a number on the host is trained without a graph, and the run says so."""
    _, stop = updated("CartPole-v1", "ppo", "cuda", encoder=f"{gpu_envs.__file__}:Waits")
    said = [message for message in stop.warnings if "CUDA graph" in message]
    yield "an encoder that waits", {"said": said, "ok": bool(said)}
    clear = torch.ones(3, device="cuda") + 1  # the device is still usable
    yield "the device afterwards", {"ok": bool((clear == 2).all())}


def check_rows() -> Iterator[tuple[str, Any]]:
    """A row has the same bits in any batch."""
    from surefoot.kernels.fused_linear import forward

    x, weight, bias = (torch.randn(size, device="cuda") for size in ((5000, 64), (64, 64), (64,)))
    whole = forward(x, weight, bias, "tanh")
    parts = [slice(77, 78), slice(3, 90), slice(1000, 4001)]
    same = [torch.equal(forward(x[own].contiguous(), weight, bias, "tanh"), whole[own]) for own in parts]
    yield "fused layers", {"same": same, "ok": all(same)}


LEARNING: dict[str, Any] = {"num_envs": 16, "rollout_length": 64, "num_epochs": 4, "num_minibatches": 4}
SEEDS, STEPS, WITHIN = 100, 100_000, 0.05


def learned(task: tuple[str, int]) -> float:
    """The area under the learning curve of one run on CartPole."""
    engine, seed = task
    steps, returns = list[int](), list[float]()

    class Curve(surefoot.Callback):
        def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            ended = [episode.ret for episode in trainer.journal.latest]
            steps.extend([trainer.step] * len(ended))
            returns.extend(ended)

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        where = {"engine": engine, "device": "cuda" if engine == "cuda" else "cpu", "run_dir": Path(folder) / "run"}
        settings = {**QUIET, **LEARNING, "total_steps": STEPS, "threads": 1, "callbacks": [Curve()]}
        surefoot.train("CartPole-v1", seed=seed, **settings, **where)
    return same_learning.area(steps, returns, STEPS)


def check_learning() -> Iterator[tuple[str, Any]]:
    """Runs on device envs learn what runs on Gymnasium's envs and the CPU do."""
    tasks = [(engine, seed) for engine in ("cuda", "auto") for seed in range(SEEDS)]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        areas = list(pool.map(learned, tasks))
    ours, theirs = areas[:SEEDS], areas[SEEDS:]
    found, low, high = same_learning.difference_interval(ours, theirs)
    means = {"cuda": float(np.mean(ours)), "cpu": float(np.mean(theirs))}
    inside = low > -WITHIN and high < WITHIN
    yield "CartPole", {**means, "seeds": SEEDS, "difference": found, "interval": [low, high], "ok": inside}


def speed(env: Any, engine: Any, updates: int, **settings: Any) -> dict[str, Any]:
    """Steps per second of a whole run."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        ready = env() if callable(env) else env
        num_envs = ready.num_envs if callable(env) else settings["num_envs"]
        steps = num_envs * settings["rollout_length"]
        own = {"total_steps": updates * steps, "log_every": 10 * steps, "engine": engine, "callbacks": [clock]}
        own |= {} if callable(env) else {"device": "cuda"}
        run = surefoot.train(ready, run_dir=Path(folder) / "run", seed=0, **{**QUIET, **settings, **own})
        returns = [row["episode_return"] for row in run.metrics if row["episode_return"] is not None]
        split = {name: round(share, 2) for name, share in run.result["time_split"].items()}
        return {"steps_per_second": round(clock.rate), "last_return": round(returns[-1], 1), "time_split": split}


ROBOTS: dict[str, Any] = {
    "rollout_length": 24, "num_epochs": 5, "num_minibatches": 4, "hidden_sizes": (512, 256, 128), "activation": "elu",
    "normalize_observations": True,
}  # fmt: skip
SPEEDS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    f"CartPole {num_envs} x 64, {precision}": (
        "CartPole-v1",
        updates,
        {"num_envs": num_envs, "rollout_length": 64, "num_epochs": 4, "num_minibatches": 4, "precision": precision},
    )
    for num_envs, updates in ((2048, 600), (16384, 200))
    for precision in ("float32", "tf32", "bf16")
}
SPEEDS |= {
    f"robots 4096 x 24, {precision}": (lambda: gpu_envs.Robots(4096), 30, {**ROBOTS, "precision": precision})
    for precision in ("float32", "tf32")
}
SPEEDS["Pendulum 8 x 128"] = ("Pendulum-v1", 30, {"num_envs": 8, "rollout_length": 128})


def beside(script: Path) -> list[str]:
    settings = "[(2048, 64, 4, 4, 100), (16384, 64, 4, 4, 50)]"
    found = subprocess.run([sys.executable, str(script), settings], capture_output=True, text=True, check=False)
    return [line for line in found.stdout.splitlines() if " sps" in line] or found.stderr.splitlines()[-3:]


def tried(check: Callable[[], Iterator[tuple[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Everything that a check has found, after each result, and the error that ended it."""
    found: dict[str, Any] = {}
    try:
        for name, result in check():
            found[name] = result
            print(name, json.dumps(result), flush=True)
            yield found
    except Exception as error:
        traceback.print_exc()
        found["error"] = {"message": repr(error), "ok": False}
    yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("checks", "learning", "speed"))
    parser.add_argument("--beside", type=Path, metavar="FILE.py")
    parser.add_argument("--engines", nargs="+", default=["cuda"], help="torch steps CartPole on the host: minutes")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "gpu.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "device": torch.cuda.get_device_name()}
    steps: dict[str, Callable[[], Iterator[Any]]] = {}
    if arguments.only in (None, "speed"):
        steps["beside"] = lambda: iter([[] if arguments.beside is None else beside(arguments.beside)])
        steps["speed"] = lambda: tried(lambda: speeds(arguments.engines))
    if arguments.only in (None, "checks"):
        steps |= {name: partial(tried, check) for name, check in CHECKS.items()}
    if arguments.only in (None, "learning"):
        steps["learning"] = lambda: tried(check_learning)
    missing = list(steps)
    for name, step in steps.items():
        for found in step():
            result[name] = found
            machine.keep(result, arguments.out)  # what a time limit leaves of a run
        missing.remove(name)
        machine.write(result, table(result, missing), arguments.out)


def compiled(name: str) -> None:
    """A few updates, whose kernels Triton keeps on disk for the next process. Where they fail, so will the next one."""
    env, updates, settings = SPEEDS[name]
    with suppress(Exception):
        speed(env, "cuda", min(updates, 12), **settings)


def speeds(engines: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if "cuda" in engines:
        with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
            list(pool.map(compiled, SPEEDS))
    for name, (env, updates, settings) in SPEEDS.items():
        for engine in engines:
            yield f"{name}, {engine}", speed(env, engine, updates, **settings)
    yield from gpu_population.speeds()


CHECKS: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
    "gradients": lambda: in_processes(gpu_kernels.check_gradient, gpu_kernels.CASES),
    "rollouts": lambda: in_processes(gpu_kernels.check_rollout, gpu_kernels.CLASSIC),
    "updates": check_updates,
    "whole iterations": check_wholes,
    "bytes": check_bytes,
    "waiting": check_waiting,
    "rows": check_rows,
    "wide layers": gpu_layers.check,
    "simulators": gpu_simulators.check,
    "populations": lambda: in_processes(gpu_population.check_case, gpu_population.CASES),
}


def table(result: dict[str, Any], missing: Sequence[str]) -> list[str]:
    """The results in Markdown, and what has not run."""
    found = [name for name in (*CHECKS, "learning") if name in result]
    failed = [f"{name}: {case}" for name in found for case, row in result[name].items() if not row["ok"]]
    result["ok"], lines = not failed, list[str]()
    if found:
        lines += [f"Checks that passed: {', '.join(found) if not failed else 'not all'}", ""]
    lines += [f"Failed: {', '.join(failed)}", ""] if failed else []
    lines += [f"Not run: {', '.join(missing)}", ""] if missing else []
    for name, row in result.get("learning", {}).items():
        if "interval" in row:
            low, high = (f"{100.0 * end:+.1f} %" for end in row["interval"])
            lines += [
                f"Area under the learning curve, {name}: {low} to {high} of the CPU's ({row['seeds']} seeds).",
                "",
            ]
    rates = {
        name: row["steps_per_second"] for name, row in result.get("speed", {}).items() if "steps_per_second" in row
    }
    if rates:
        lines += [*machine.head("what", "steps/s"), *(machine.row(name, f"{x:,}") for name, x in rates.items()), ""]
    return lines + result.get("beside", [])


if __name__ == "__main__":
    main()
