"""Measures how fast the env is, alone and together with others."""

from __future__ import annotations

from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING

from surefoot.doctor.case import SEED
from surefoot.envs.backends import backend_of
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.random_play import Player
from surefoot.envs.workers.auto import choose_workers, fit_to_act

if TYPE_CHECKING:
    from surefoot.doctor.case import Case

SPEED_SECONDS, START_SECONDS = 0.3, 2.0  # per measurement; the longest time that making its envs may take
COUNTS = (4, 8, 16)
WORKERS_BELOW = 40_000  # steps/s of one env: faster ones gain little
POLICY_SECONDS = 2e-4  # cost of one call of a small policy, which more envs per call share


def measure_speed(case: Case) -> None:
    begun = perf_counter()
    alone = _speed_of(case, 1)
    starting = perf_counter() - begun - SPEED_SECONDS
    together = {str(count): _speed_of(case, count) for count in COUNTS if count * starting <= START_SECONDS}
    case.report.numbers["steps_per_second"] = {"alone": alone}
    case.report.numbers["steps_per_second_together"] = together
    # Enough envs that calling the policy costs little in comparison; at least 4, for more varied samples.
    share = 5 * POLICY_SECONDS * alone
    num_envs = next((n for n in COUNTS if n >= share), COUNTS[-1])
    case.wanted = {"--num-envs": str(num_envs), **case.wanted}
    if (
        alone < WORKERS_BELOW
        and case.factory is None
        and not backend_of(case.config.env).steps_together(case.config)[0]
    ):
        workers, why = choose_workers(case.config, num_envs, fit_to_act)
        case.report.numbers["workers"] = {"number": workers, "why": why}
        if workers:
            case.wanted["--workers"] = str(workers)


def _speed_of(case: Case, count: int) -> float:
    with closing(GymEnvs(case.make, count, SEED)) as envs:
        return Player(envs, SEED).rate(SPEED_SECONDS)
