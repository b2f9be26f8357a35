"""What every algorithm of the library must do, for an algorithm of one's own: the contract tests in a few seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from surefoot.algorithms import Algorithm, get_algorithm
from surefoot.api import resume, train
from surefoot.course.grading import Wrong
from surefoot.course.samples import random_rollout, small_policy
from surefoot.engine.torch.learner import Learner
from surefoot.runs import Run
from surefoot.settings import options
from surefoot.text import print
from surefoot.types import Rollout

STEPS = 512


def contract(name: str) -> None:
    """Examine the algorithm that `file.py:Class` names; raises `Wrong` if it breaks the contract."""
    kind = get_algorithm(name)
    for action in ("discrete", "continuous"):
        _first_ratio(kind, action)
        _same_bytes(kind, action)
        _invalid_steps(kind, action)
        print(
            f"✓ {action} actions: the first ratio is 1, invalid steps change nothing, the same update twice is the same"
        )
    _resumes(name, kind)
    print(f"✓ {2 * STEPS} steps are {STEPS} steps, a stop, and {STEPS} more, to the byte")


def _updated(
    kind: type[Algorithm], action: str, change: Callable[[Rollout], None] | None = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """The weights and the metrics after three updates."""
    algorithm = kind(kind.config_type())
    policy = small_policy(action, critic=algorithm.uses_critic)
    learner = Learner(
        policy, algorithm.config, torch.Generator("cpu").manual_seed(1), train_actor=algorithm.train_actor
    )
    metrics: dict[str, float] = {}
    for seed in range(3):
        rollout = random_rollout(policy, seed=seed)
        if change is not None:
            change(rollout)
        metrics = algorithm.update(learner, rollout)
        if seed == 0 and metrics["ratio_error"] > 1e-6:
            raise Wrong(f"the first ratio is off by {metrics['ratio_error']:.2g}; at the start of an update it is 1")
    return learner.flat.vector.detach().clone(), metrics


def _first_ratio(kind: type[Algorithm], action: str) -> None:
    _, metrics = _updated(kind, action)
    broken = [name for name, value in metrics.items() if not math.isfinite(value)]
    if broken:
        raise Wrong(f"with {action} actions these metrics are not numbers: {', '.join(broken)}")


def _invalid_steps(kind: type[Algorithm], action: str) -> None:
    def with_garbage(amount: float) -> torch.Tensor:
        def change(rollout: Rollout) -> None:
            rollout.truncated[3, :2] = True
            rollout.valid[4, :2] = False
            rollout.value = rollout.value.clone()  # it shares its memory with `next_value`
            rollout.reward[4, :2] = rollout.value[4, :2] = amount

        return _updated(kind, action, change)[0]

    if not torch.equal(with_garbage(0.0), with_garbage(100.0)):
        raise Wrong("a step that is no transition (`valid` is false) reaches the weights; take means with `batch.mean`")


def _same_bytes(kind: type[Algorithm], action: str) -> None:
    if not torch.equal(_updated(kind, action)[0], _updated(kind, action)[0]):
        raise Wrong("the same update twice gives different weights; draw random numbers from the learner's generator")


def _resumes(name: str, kind: type[Algorithm]) -> None:
    known = {option.name for option in options(kind.config_type)}
    settings: dict[str, object] = {"preset": "none", "num_envs": 4, "seed": 0, "threads": 1, "eval_episodes": 1}
    settings |= {"rollout_length": 32} if "rollout_length" in known else {}
    settings |= {"num_minibatches": 2} if "num_minibatches" in known else {}
    with TemporaryDirectory() as folder:
        whole, halved = Path(folder) / "whole", Path(folder) / "halved"
        _train(name, 2 * STEPS, whole, settings)
        _train(name, STEPS, halved, settings)
        resume(halved, total_steps=2 * STEPS, trust=True, progress=False)
        if _weights(whole) != _weights(halved):
            raise Wrong(
                "a resumed run differs from one that never stopped; put what changes over a run into `self.state`"
            )


def _train(name: str, steps: int, folder: Path, settings: dict[str, object]) -> None:
    train("CartPole-v1", name, total_steps=steps, run_dir=folder, progress=False, **settings)  # type: ignore[arg-type]


def _weights(folder: Path) -> bytes:
    run = Run(folder)
    return (run.directory.checkpoints / str(run.checkpoints.latest) / "policy.safetensors").read_bytes()
