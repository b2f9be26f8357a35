"""Rollouts of a stub simulator on a GPU: the same bits with all of ours between two steps as one graph, and their time.

    python benchmarks/gpu_simulators.py                                  # about a minute
    python benchmarks/gpu_simulators.py --device cpu --num-envs 8        # a try, where nothing is recorded

`ours` is the host's time per step without the simulator's own, while the device works; `step` is the wall time of all.
The same is checked by `gpu.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
from gpu_envs import Robots
from torch import Tensor

from surefoot.algorithms.ppo_clip import Config, PPOClip
from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.contract import CollectorOptions, LearnerOptions
from surefoot.engine.cuda.between_steps import BetweenSteps
from surefoot.engine.cuda.engine import CudaEngine
from surefoot.engine.precision import held_precision
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Rollout

LENGTH, ROLLOUTS, TIMED = 24, 3, 10
WIDE: dict[str, Any] = {"hidden_sizes": (512, 256, 128), "activation": "elu", "normalize_observations": True}
CASES: dict[str, dict[str, Any]] = {
    "float32": WIDE,
    "tf32": WIDE,
    "gru": {"memory": "gru", "memory_size": 32},
    "gsde": {"std": "gsde", "sde_resample": 8},
    "narrow": {"normalize_observations": True},
}


class Clocked(Robots):
    """Counts the time that the simulator's own steps take the host."""

    spent = 0.0

    def step(self, action: Tensor) -> Any:
        start = perf_counter()
        try:
            return super().step(action)
        finally:
            self.spent += perf_counter() - start


def collector(envs: Clocked, policy: dict[str, Any], precision: str) -> tuple[Collector, CudaEngine]:
    device = envs.simulator.device
    made = TensorEnvs(envs, envs.reset(seed=0))
    torch.manual_seed(0)
    own = ActorCritic(made.observation_space, made.action_space, PolicyConfig(**policy)).to(made.device)
    engine, drawn = CudaEngine(), torch.Generator(device).manual_seed(0)
    options = LearnerOptions(drawn, precision="tf32" if precision == "tf32" else "float32")
    learner = engine.learner(own, PPOClip(Config(num_envs=envs.num_envs)), options)
    return engine.collector(made, learner.actor, CollectorOptions(LENGTH, drawn)), engine


def collected(made: Collector) -> list[Tensor]:
    """All that a few rollouts hold, copied."""
    kept = []
    for _ in range(ROLLOUTS):
        rollout: Rollout = made.collect()
        columns = (rollout.obs, rollout.action, rollout.dist_params, rollout.reward, rollout.truncated, rollout.valid)
        kept += [x.clone() for x in (*columns, rollout.log_prob, rollout.next_value, rollout.final_inputs)]
    return kept


def check(num_envs: int = 4096, device: str = "cuda") -> Iterator[tuple[str, Any]]:
    for name, policy in CASES.items():
        with held_precision("tf32" if name == "tf32" else "float32"):
            found = []
            for recorded in (True, False):
                envs = Clocked(num_envs, device)
                made, engine = collector(envs, policy, name)
                assert isinstance(made.stepping, BetweenSteps)
                if not recorded:
                    made.stepping = step_all
                found.append((collected(made), timed(made, envs), engine.take_notices()))
        (ours, fast, said), (theirs, slow, _) = found
        same = all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
        yield name, {"same": same, "said": said, "between": fast, "step_all": slow, "ok": same and not said}


def timed(made: Collector, envs: Clocked) -> dict[str, float]:
    """Microseconds per step."""
    wait = torch.cuda.synchronize if envs.simulator.device.type == "cuda" else lambda: None
    ours, whole = [], []
    for _ in range(TIMED):
        made._begin()
        noise, memory = made.noise(), made.policy.initial_memory(envs.num_envs)
        wait()
        envs.spent, start = 0.0, perf_counter()
        with torch.no_grad():
            made.stepping(made, noise, memory)
        asked = perf_counter() - start
        wait()
        ours.append(1e6 * (asked - envs.spent) / LENGTH)
        whole.append(1e6 * (perf_counter() - start) / LENGTH)
        made._last = LENGTH
    return {"ours": round(sorted(ours)[TIMED // 2], 1), "step": round(sorted(whole)[TIMED // 2], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-envs", type=int, default=4096, metavar="N")
    arguments = parser.parse_args()
    for name, found in check(arguments.num_envs, arguments.device):
        print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
