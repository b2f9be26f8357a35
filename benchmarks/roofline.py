"""How close training comes to the machine's limit: the arithmetic limit, the gradient step, the whole update.

    python benchmarks/roofline.py [--rounds 7] [--seconds 2] [--only NAME …]

The limit is measured, not looked up: the best of large float32 matrix products in PyTorch on one thread and on two, and
of a loop of fused multiply-adds on registers compiled for this processor (if g++ is available). Shares are relative to
the matrix product, because that is the best that code that has to fetch its operands can reach.

The gradient step is the kernels' (`Network.epochs`) at the settings of versus_peers.py, and its arithmetic is counted
exactly. With layers of aᵢ inputs and bᵢ outputs in actor and critic, P parameters and a minibatch of B samples:

    forward            2·aᵢ·bᵢ + bᵢ            per sample and layer (multiply-adds, bias)
    weight gradient    2·aᵢ·bᵢ + bᵢ            per sample and layer
    input gradient     2·aᵢ·bᵢ                 per sample and layer but the first of its chain, whose inputs are data
    clip and Adam      16·P                    per step (norm 2, clip 1, moments 7, step 6)

Activations, softmax and the loss itself are not counted as arithmetic, so their time lowers the share. After that, a
few seconds of real training per setting show what an update consists of.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import statistics
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import machine
import numpy as np
import torch
from peers.settings import SETTINGS, Setting

from surefoot.bench.measure import ENDLESS, WARM_UP, measure, only_training
from surefoot.engine.native.describe import describe
from surefoot.envs.make import make_env
from surefoot.kernels.description import Description
from surefoot.kernels.network import Network
from surefoot.kernels.specs import loss_spec, optimizer_spec
from surefoot.training.build.parts import initial_policy
from surefoot.training.config.resolve import TrainConfig, resolve

NEEDS = {"HalfCheetah-v5": "mujoco", "LunarLander-v3": "Box2D"}
FMA = r"""
#if defined(__AVX512F__)
enum { width = 16 };
#else
enum { width = 8 };
#endif
enum { chains = 12 };  // enough to hide the latency, few enough for the registers
typedef float lanes __attribute__((vector_size(4 * width)));
extern "C" long flops() { return 2L * width * chains; }
extern "C" float spin(long rounds) {
    lanes a[chains], x, y;
    for (int j = 0; j < width; ++j) { x[j] = 0.999f; y[j] = 1e-3f; }
    for (int i = 0; i < chains; ++i) for (int j = 0; j < width; ++j) a[i][j] = 0.1f * i + j;
    for (long r = 0; r < rounds; ++r)
        for (int i = 0; i < chains; ++i) a[i] = a[i] * x + y;
    float sum = 0;
    for (int i = 0; i < chains; ++i) for (int j = 0; j < width; ++j) sum += a[i][j];
    return sum;
}
"""


# ------------------------------------------------------------------------------------------------------- the limit


def matrix_limit(threads: int, rounds: int, size: int = 1024) -> float:
    """GFLOP/s of the best large float32 product."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    best = min(timed(lambda: torch.mm(a, b, out=out)) for _ in range(max(10, 3 * rounds)))
    torch.set_num_threads(before)
    return 2.0 * size**3 / best / 1e9


def fma_limit(rounds: int) -> dict[str, float]:
    """GFLOP/s of multiply-adds on registers, with one thread and with two; empty without g++."""
    if shutil.which("g++") is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "fma.cpp", Path(folder) / "fma.so"
        source.write_text(FMA)
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-mprefer-vector-width=512", "-fPIC", "-shared"]
        done = subprocess.run(["g++", *flags, str(source), "-o", str(made)], capture_output=True)
        if done.returncode:  # the processor or the compiler does not know one of the flags
            return {}
        library = ctypes.CDLL(str(made))
    spin, turns = library.spin, 2_000_000
    spin.restype, spin.argtypes = ctypes.c_float, [ctypes.c_long]
    flops = library.flops() * turns

    def together(count: int) -> None:
        others = [threading.Thread(target=spin, args=(turns,)) for _ in range(count)]  # ctypes releases the GIL
        for other in others:
            other.start()
        for other in others:
            other.join()

    return {
        str(count): count * flops / min(timed(lambda: together(count)) for _ in range(rounds)) / 1e9  # noqa: B023
        for count in (1, 2)
    }


def timed(call: Any) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


# ----------------------------------------------------------------------------------------------- the gradient step


def step_flops(network: Description, samples: int) -> int:
    """Operations of one gradient step of actor and critic, by the formula above."""
    per_sample = 0
    for chain, first_is_data in (
        (network.trunk, True),
        (network.actor, not network.trunk),
        (network.critic, not network.trunk),
    ):
        for at, layer in enumerate(chain):
            products = 2 * layer.inputs * layer.outputs
            per_sample += 2 * (products + layer.outputs)
            per_sample += 0 if at == 0 and first_is_data else products
    return per_sample * samples + 16 * network.size


@dataclass
class Problem:
    """A network with a rollout's worth of samples, in the kernels' form."""

    network: Description
    theta: Any
    arrays: tuple[Any, ...]
    samples: int


def problem(config: TrainConfig) -> Problem:
    """The policy of a setting, and samples that it drew itself."""
    env = make_env(config.env)
    policy = initial_policy(env.observation_space, env.action_space, config.policy, 0, critic=True, masked=False)
    env.close()
    network = describe(policy)
    samples = config.algorithm.num_envs * config.algorithm.rollout_length
    parameters = [*policy.actor_parameters(), *policy.critic_parameters()]
    theta = np.concatenate([p.detach().numpy().reshape(-1) for p in parameters]).astype(np.float32)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, network.inputs, generator=generator).numpy()
    noise = np.ascontiguousarray(policy.actions.noise((samples,), generator).numpy())
    params = np.zeros((samples, policy.actions.num_params), np.float32)
    action = np.zeros((samples, max(1, int(np.prod(policy.actions.shape)))), np.float32)
    log_prob = np.zeros(samples, np.float32)
    net = Network(network)
    net.act(theta, x, noise, params, action, log_prob)
    advantage, value = (torch.randn(samples, generator=generator).numpy() for _ in range(2))
    return Problem(network, theta, (x, action, log_prob, params, advantage, value + 1.0, value), samples)


def step_seconds(given: Problem, minibatches: int, threads: int, rounds: int) -> float:
    """Median over rounds of the time of one gradient step."""
    net = Network(given.network, threads)
    theta, gradient = given.theta.copy(), np.zeros_like(given.theta)
    moments = (np.zeros_like(theta), np.zeros_like(theta))
    spec = loss_spec("clip", 0.2, value_coef=0.5, with_value=True, entropy_coef=0.01)
    optimizer = optimizer_spec("adam", [(0, given.network.size, 1e-6)], 0.5)
    batch = net.batch(*given.arrays)
    epochs = max(1, round(2e-2 * 50e9 / (step_flops(given.network, given.samples // minibatches) * minibatches)))
    rng = np.random.default_rng(0)
    order = np.stack([rng.permutation(given.samples) for _ in range(epochs)]) if minibatches > 1 else None

    def call() -> None:
        net.epochs(
            theta, gradient, moments, 0, spec, optimizer, batch, order, epochs, minibatches, normalize=minibatches > 1
        )

    call()
    return statistics.median(timed(call) for _ in range(rounds)) / (epochs * minibatches)


# -------------------------------------------------------------------------------------------------- whole updates


def config_of(setting: Setting) -> TrainConfig:
    shape = {"num_envs": setting.num_envs, "rollout_length": setting.rollout_length, "total_steps": ENDLESS}
    config = resolve(setting.env, setting.algo, "none", None, shape | setting.ours | {"log_every": 10_000})
    return only_training(config, endless=False)


def update(config: TrainConfig, seconds: float) -> dict[str, float]:
    """Milliseconds of a training update on the native engine, by part."""
    measure(config, "native", WARM_UP)
    found = measure(config, "native", seconds)
    whole = 1e3 * found["seconds"] / found["updates"]
    parts = {name: whole * share for name, share in found["split"].items()}
    return {
        "whole": whole,
        **{name: parts.pop(name, 0.0) for name in ("act", "env", "learn")},
        "other": sum(parts.values()),
    }


def examine(setting: Setting, limits: dict[str, float], rounds: int, seconds: float) -> dict[str, Any]:
    config = config_of(setting)
    found: dict[str, Any] = {"setting": setting.says, "update_ms": update(config, seconds)}
    if setting.algo not in ("ppo", "a2c"):
        return found
    minibatches = getattr(config.algorithm, "num_minibatches", 1)
    steps = minibatches * getattr(config.algorithm, "num_epochs", 1)
    given = problem(config)
    samples = given.samples // minibatches
    flops = step_flops(given.network, samples)
    found |= {"minibatch": samples, "flops": flops, "steps_per_update": steps, "threads": {}}
    for threads in ("1", "2"):
        took = step_seconds(given, minibatches, int(threads), rounds)
        speed, limit = flops / took / 1e9, max(limits["1"], limits[threads])
        found["threads"][threads] = {"microseconds": 1e6 * took, "gflops": speed, "share": speed / limit}
    # What an update would take if all its arithmetic ran at the limit of one thread.
    found["floor_ms"] = 1e3 * steps * flops / (limits["1"] * 1e9)
    found["gradient_steps_ms"] = 1e-3 * steps * found["threads"]["1"]["microseconds"]
    return found


def tables(result: dict[str, Any]) -> list[str]:
    limits = result["limits"]
    lines = ["Limits of this machine, GFLOP/s in float32:", "", *machine.head("", "one thread", "two threads")]
    for name, says in (("matrix", "matrix product 1024³ (PyTorch)"), ("fma", "multiply-adds on registers")):
        if limits[name]:
            lines.append(machine.row(says, *(f"{limits[name][threads]:.0f}" for threads in ("1", "2"))))
    lines += ["", "One gradient step of the kernels:", ""]
    lines += machine.head("setting", "batch", "MFLOP", "1 thread", "GFLOP/s", "share", "2 threads", "GFLOP/s", "share")
    for found in result["settings"].values():
        if "flops" in found:
            cells = []
            for threads in ("1", "2"):
                own = found["threads"][threads]
                cells += [f"{own['microseconds']:,.0f} µs", f"{own['gflops']:.0f}", f"{own['share']:.0%}"]
            lines.append(machine.row(found["setting"], found["minibatch"], f"{found['flops'] / 1e6:.2f}", *cells))
    lines += ["", "One training update on the native engine, ms (with native envs, env is part of act):", ""]
    parts = ("act", "env", "learn", "other")
    lines += machine.head("setting", "whole", *parts, "of learn: gradient steps", "all arithmetic at the limit")
    for found in result["settings"].values():
        took = found["update_ms"]
        kernel = [f"{found[name]:.2f}" if name in found else "–" for name in ("gradient_steps_ms", "floor_ms")]
        lines.append(machine.row(found["setting"], *(f"{took[name]:.2f}" for name in ("whole", *parts)), *kernel))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of training per setting [2]")
    parser.add_argument("--only", nargs="*", metavar="NAME", help=", ".join(setting.name for setting in SETTINGS))
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "roofline.json", metavar="FILE.json")
    arguments = parser.parse_args()
    matrix = {str(threads): matrix_limit(threads, arguments.rounds) for threads in (1, 2)}
    limits = {"matrix": matrix, "fma": fma_limit(arguments.rounds)}
    result: dict[str, Any] = {"machine": machine.describe(), "limits": limits, "settings": {}}
    for setting in SETTINGS:
        if arguments.only and setting.name not in arguments.only:
            continue
        if setting.env in NEEDS and find_spec(NEEDS[setting.env]) is None:
            print(f"{setting.name}: left out, {NEEDS[setting.env]} is not installed")
            continue
        print(setting.name, flush=True)
        result["settings"][setting.name] = examine(setting, matrix, arguments.rounds, arguments.seconds)
    machine.write(result, tables(result), arguments.out)


if __name__ == "__main__":
    main()
