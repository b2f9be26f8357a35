"""Whole rollouts that workers play on their own, as their parent sees them (`acting.py` is the other side)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from surefoot.envs.workers.acting import policy_fields, rollout_arrays, rollout_fields
from surefoot.envs.workers.messages import frame
from surefoot.kernels.library import variant

if TYPE_CHECKING:
    from surefoot.envs.workers.acting import Equipment, Played
    from surefoot.envs.workers.envs import WorkerEnvs
    from surefoot.envs.workers.process import Lost, Worker
    from surefoot.kernels.handle import Tables
    from surefoot.types import Array, Info


class Form(NamedTuple):
    """The arrays of a rollout, and how actions are sent."""

    length: int
    action: tuple[tuple[int, ...], str]  # shape and dtype of one, as stored
    params: int  # of an action's distribution
    noise: int
    bounds: str  # `action_bounds`
    normalized: bool  # the observations are


class WorkerRollouts:
    """`arrays` `[T, N, …]` are shared with the workers. `begin`, fill `theta`, `scaling`, `noise`, `memory` and the
    first rows of `obs` and `start`, `play`, and read the others.

    A worker that is lost on the way is replaced, if it may be: the step it was in is not a transition.
    """

    def __init__(self, envs: WorkerEnvs, tables: Tables, form: Form) -> None:
        self._envs, self._supervisor, self.length = envs, envs.supervisor, form.length
        shape, numbers = envs.layout.shape, (form.params, form.noise, tables.remembered)
        own = rollout_fields(form.length, envs.num_envs, shape, form.action, numbers)
        fields = [*envs.supervisor.fields, *own, *policy_fields(tables.size, shape)]
        self._remembers = tables.remembered > 0
        self._equipment: Equipment = {
            "fields": fields,
            "tables": dict(tables._asdict()),
            "variant": variant(),
            "bounds": form.bounds,
            "normalized": form.normalized,
        }
        self.arrays: dict[str, Array] = {}
        self.why_not = ""  # why the workers cannot act
        try:
            self.arrays = rollout_arrays(envs.supervisor.memory, fields, create=True)
            self.why_not = self._supervisor.equip(self._equipment)
        except OSError as error:  # a limit on memory or on the size of files
            self.why_not = str(error)

    def begin(self) -> None:
        """From now on no worker writes into the arrays, even if the last rollout was interrupted."""
        supervisor, arrays = self._supervisor, self.arrays
        supervisor.settle()
        if supervisor.equipment is not self._equipment:  # other rollouts have been played meanwhile
            supervisor.equip(self._equipment)
        arrays["stop"][:], arrays["done"][:], arrays["valid"][:] = 0, 0, True

    def play(self) -> list[Played]:
        """The whole rollout; what the workers report. An env's error is raised here."""
        supervisor, arrays = self._supervisor, self.arrays
        reports: list[Played] = []
        try:
            for worker in supervisor.workers:
                self._send(worker, 0)
            while answered := supervisor.answered():
                for worker in answered:
                    report, lost = supervisor.take(worker)
                    if lost is None:
                        reports.append(report)
                    elif (step := int(arrays["done"][worker.envs.start])) == self.length:
                        worker.awaited = False  # the next rollout begins with its loss
                    else:
                        self._cut(worker, lost, step)
                        if step + 1 < self.length:
                            self._send(worker, step + 1)
        except BaseException:
            arrays["stop"][:] = 1
            raise
        self._envs.seen()
        return reports

    def _send(self, worker: Worker, first: int) -> None:
        self._supervisor.send(worker, frame(b"x", {"do": "rollout", "first": first}))

    def _cut(self, worker: Worker, error: Lost, t: int) -> None:
        """Truncate the episodes that were open before step t; new ones have begun after it."""
        at, own = self.arrays, slice(worker.envs.start, worker.envs.stop)
        self._supervisor.revive(worker, error, "between two steps")
        at["reward"][t, own] = at["terminated"][t, own] = at["life_lost"][t, own] = at["valid"][t, own] = 0
        at["truncated"][t, own], at["final"][t, own] = True, at["obs"][t, own]
        if self._remembers:
            at["final_memory"][t, own] = at["memory"][own]
        at["obs"][t + 1, own], at["start"][t + 1, own] = self._envs.observations[own], True

    def infos(self, reports: list[Played]) -> dict[tuple[int, int], Info]:
        """The infos at the ends of episodes, by step and env. Those of a worker that was lost are lost with it."""
        return {(t, env): info for report in reports for t, env, info in report["infos"]}
