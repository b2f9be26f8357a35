"""How fast the env is, alone and together with its like."""

from __future__ import annotations

from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING

from surefoot.envs.doctor.case import SEED
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.random_play import Player

if TYPE_CHECKING:
    from surefoot.envs.doctor.case import Case

SPEED_SECONDS, START_SECONDS = 0.3, 2.0  # of one measurement; the longest that making its envs may take
COUNTS = (4, 8, 16)
POLICY_SECONDS = 2e-4  # one call of a small policy: what more envs per call share among them


def measure_speed(case: Case) -> None:
    begun = perf_counter()
    alone = _speed_of(case, 1)
    starting = perf_counter() - begun - SPEED_SECONDS
    together = {str(count): _speed_of(case, count) for count in COUNTS if count * starting <= START_SECONDS}
    case.report.numbers["steps_per_second"] = {"alone": alone}
    case.report.numbers["steps_per_second_together"] = together
    # So many that calling the policy costs little beside the envs; at least 4, whose samples are less alike.
    share = 5 * POLICY_SECONDS * alone
    case.wanted = {"--num-envs": str(next((n for n in COUNTS if n >= share), COUNTS[-1])), **case.wanted}


def _speed_of(case: Case, count: int) -> float:
    with closing(GymEnvs(case.make, count, SEED)) as envs:
        steps, seconds = Player(envs, SEED).play(SPEED_SECONDS)
    return steps / seconds
