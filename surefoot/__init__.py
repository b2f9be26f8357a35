"""surefoot: policy gradients that don't step off the cliff.

    import surefoot
    run = surefoot.train("CartPole-v1", algo="ppo", total_steps=100_000, seed=0)
    agent = surefoot.load(run)
    surefoot.evaluate(agent, "CartPole-v1").mean_return

The heavy imports (torch, gymnasium) happen when a name is first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from surefoot.engine import openmp as _openmp  # noqa: F401 (its hook makes forks safe from here on)

if TYPE_CHECKING:
    from surefoot.api import evaluate, resume, train, video
    from surefoot.cli.tune import tune
    from surefoot.deploy.loading import load
    from surefoot.errors import BusyError, CheckpointError, EnvError, NonFiniteError, SurefootError, UsageError
    from surefoot.runs.run import Run
    from surefoot.timetravel.diff import diff
    from surefoot.timetravel.replay import replay
    from surefoot.training.callbacks import Callback
    from surefoot.training.evaluation.agent import Agent
    from surefoot.training.evaluation.result import Evaluation
    from surefoot.training.evaluation.video import Recording as Recording

__version__ = "0.1.0"

_HOME = {
    "Agent": "surefoot.training.evaluation.agent",
    "BusyError": "surefoot.errors",
    "Callback": "surefoot.training.callbacks",
    "CheckpointError": "surefoot.errors",
    "EnvError": "surefoot.errors",
    "Evaluation": "surefoot.training.evaluation.result",
    "NonFiniteError": "surefoot.errors",
    "Run": "surefoot.runs.run",
    "SurefootError": "surefoot.errors",
    "UsageError": "surefoot.errors",
    "diff": "surefoot.timetravel.diff",
    "evaluate": "surefoot.api",
    "load": "surefoot.deploy.loading",
    "replay": "surefoot.timetravel.replay",
    "resume": "surefoot.api",
    "train": "surefoot.api",
    "tune": "surefoot.cli.tune",
    "video": "surefoot.api",
}

__all__ = [
    "Agent",
    "BusyError",
    "Callback",
    "CheckpointError",
    "EnvError",
    "Evaluation",
    "NonFiniteError",
    "Run",
    "SurefootError",
    "UsageError",
    "__version__",
    "diff",
    "evaluate",
    "load",
    "replay",
    "resume",
    "train",
    "tune",
    "video",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
