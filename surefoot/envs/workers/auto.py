"""`--workers auto`: measures whether one process or several step the envs faster on this machine.

The measured envs live in separate worker processes, even those "in one process", so that nothing they do or break
(global generators, a module's state, a segmentation fault) affects the run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.envs.backends import no_workers
from surefoot.envs.random_play import Player
from surefoot.envs.workers.envs import WorkerEnvs
from surefoot.errors import SurefootError, UsageError
from surefoot.limits import usable_cores

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.types import Envs

SECONDS = 1.0  # per measurement
EXTRA = 2e-6  # seconds per env step in which the parent of workers that act copies what they played
GAIN = 1.1  # required speed-up: acting and learning gain nothing from workers, which occupy the cores
SEED = 0


def never(envs: Envs) -> bool:
    return False


def fit_to_act(envs: Envs) -> bool:
    """Whether workers can act on their own, as far as the spaces tell: the kernels take the rows as they are."""
    layout = envs.layout
    plain = layout.dtype == np.float32 and all(leaf.kind in ("vector", "binary") for leaf in layout.leaves)
    return plain and not isinstance(envs.action_space, (spaces.Dict, spaces.Tuple))


def choose_workers(config: EnvConfig, num_envs: int, act: Callable[[Envs], bool] = never) -> tuple[int, str]:
    """(the best number of workers for an env by id or file, why); at least one if a time limit needs it.

    `act`: whether workers with such envs will act on their own, so that no step is exchanged.
    """
    number, why = _fastest(config, num_envs, act)
    if number or config.env_timeout == type(config).env_timeout:
        return number, why
    return 1, f"env_timeout needs one; {why}"


def _fastest(config: EnvConfig, num_envs: int, act: Callable[[Envs], bool]) -> tuple[int, str]:
    most = min(usable_cores(), num_envs)
    if config.restart_workers:
        return most, "as many as there are cores or envs, for restart_workers needs them"
    if why := no_workers(config.env):
        return 0, f"workers cannot be used: {why}"
    if most < 2:
        return 0, "one env" if num_envs == 1 else "one core"
    try:
        with closing(WorkerEnvs(config, num_envs, SEED, most, timeout=config.env_timeout)) as envs:
            apart = 1.0 / (1.0 / _rate_alone(envs) + EXTRA) if act(envs) else Player(envs, SEED).rate(SECONDS)
        with closing(WorkerEnvs(config, num_envs, SEED, 1, timeout=config.env_timeout)) as envs:
            together = _rate_alone(envs)
    except UsageError as error:
        return 0, f"workers cannot be used: {error}"
    except SurefootError as error:  # in a worker, even a crash is only an error
        return most, f"random play failed: {error}"
    if apart > GAIN * together:
        return most, f"{apart:,.0f} env steps/s with them, {together:,.0f} in one process"
    return 0, f"{together:,.0f} env steps/s in one process, {apart:,.0f} with {most} workers"


def _rate_alone(envs: WorkerEnvs) -> float:
    """Env steps per second of all workers at once, each playing by itself."""
    rates, lost = envs.supervisor.ask_all({"do": "play", "seed": SEED, "seconds": SECONDS})
    for worker, error in lost.items():
        envs.supervisor.spend(worker, error, "between two steps")
    return float(sum(rates))
