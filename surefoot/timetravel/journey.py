"""Replays a run up to an update: rebuilds it from an earlier checkpoint and trains on, writing nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from torch import Tensor

from surefoot.errors import CheckpointError, SurefootError, UsageError
from surefoot.runs.checkpoints import read_verified, steps_of
from surefoot.runs.files import read_json
from surefoot.text import print
from surefoot.training.callbacks import Callback
from surefoot.training.life.rebuild import other_envs, rebuild, stored_config, what_differs
from surefoot.training.loop.global_generators import capture_globals, restore_globals
from surefoot.training.loop.state import restore, start_from
from surefoot.training.loop.state_tree import join, split
from surefoot.training.reports.loggers import json_number

if TYPE_CHECKING:
    from surefoot.runs import Run
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.life.rebuild import Rebuilt
    from surefoot.training.life.trust import Trust
    from surefoot.training.loop.trainer_state import TrainerState
    from surefoot.training.trainer import Trainer
    from surefoot.types import MetricsRow, Rollout


class Visitor(Protocol):
    """Is shown the updates that are to be replayed."""

    def before_update(self, trainer: Trainer, rollout: Rollout) -> None:
        """The rollout is collected and not yet learned from."""
        ...

    def gradient(self, kind: Literal["minibatch", "policy", "natural_step"], vector: Tensor, /) -> None:
        """Like `Observer.__call__`."""
        ...

    def after(self, trainer: Trainer, metrics: dict[str, float]) -> None: ...


@dataclass(frozen=True)
class Span:
    """The updates from `first` to `last`, or those that contain these env steps. Both count from 1."""

    first: int
    last: int
    by: Literal["update", "step"] = "update"

    def __str__(self) -> str:
        return f"{self.by} {self.first:,}" if self.first == self.last else f"{self.by}s {self.first:,} to {self.last:,}"


@dataclass(frozen=True)
class History:
    """What a run's directory says about its past."""

    rows: dict[int, MetricsRow]  # by the number of their last update
    last: dict[str, int]  # the last update and the last step that are known
    horizons: list[tuple[int, int]]  # (step, total_steps until then), where a resume gave the run another budget
    stopped: tuple[int, str] | None  # the update after which it was stopped early, and why

    @classmethod
    def read(cls, run: Run) -> History:
        run.refuse_other_schema()
        rows = rows_by_update(run)
        last = {"update": 0, "step": 0}
        ends = [(number, int(row["step"] or 0)) for number, row in rows.items()]
        with suppress(SurefootError):
            ends += [(_updates_of(folder), int(folder.name)) for folder in steps_of(run.directory.checkpoints)[-1:]]
        for update, step in ends:
            last = {"update": max(last["update"], update), "step": max(last["step"], step)}
        with suppress(SurefootError):  # the update that was rejected can be looked into as well
            last["update"] += run.status.get("state") == "failed"
        extended = run.manifest.get("extended")
        try:
            horizons = [(int(one["step"]), int(one["from"])) for one in extended or ()]
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"{run.directory.manifest} is malformed: extended = {extended!r}") from None
        result = run.result if os.path.lexists(run.directory.result) else {}
        why, updates, stopped = result.get("stopped"), result.get("updates"), None
        if isinstance(why, str) and isinstance(updates, int) and result.get("resume") is None:
            stopped = (updates, why)
        return cls(rows, last, horizons, stopped)

    def row_of(self, update: int) -> int | None:
        """The row that an update is part of, by its last one."""
        return min((number for number in self.rows if number >= update), default=None)

    def horizon(self, step: int) -> tuple[int | None, int | None]:
        """(total_steps in force at this step, if not the last; the step at which the next budget was given)."""
        return next(((budget, end) for end, budget in self.horizons if step < end), (None, None))


def rows_by_update(run: Run) -> dict[int, MetricsRow]:
    """The rows of metrics by the number of their last update; a row that does not say it, or its step, is left out."""
    return {
        row["update"]: row for row in run.metrics if all(isinstance(row.get(name), int) for name in ("update", "step"))
    }


class Journey(Callback):
    """One replay of a run, up to the end of `span` and of the row of metrics that its last update is part of."""

    def __init__(self, run: Run, span: Span, visitor: Visitor, *, progress: bool = False) -> None:
        """`progress`: say where it starts, since it may take long."""
        self.run, self.span, self.visitor, self.progress = run, span, visitor, progress
        self.history = History.read(run)
        self.rows: dict[int, MetricsRow] = {}  # computed now
        self.notes: list[str] = []
        self.start = "the beginning of the run"
        self.last_update = 0  # the last one that was visited
        self.done = False
        self._arrived = self._visiting = False
        self._change: int | None = None  # the step at which the run was given another budget
        self.state: tuple[TrainerState, dict[str, Tensor]] | None = None  # at the end of a life of the run

    def check(self) -> None:
        """UsageError if the run does not have these updates."""
        span, last = self.span, self.history.last[self.span.by]
        if not last:
            raise UsageError(f"{self.run.path} has no saved or logged update, so there is nothing to replay")
        if not 1 <= span.first <= span.last <= last:
            wrong = span.last if span.last > last else span.first
            raise UsageError(f"there is no {span.by} {wrong:,}; {self.run.path} has {span.by}s 1 to {last:,}")

    def on_rollout(self, trainer: Trainer, rollout: Rollout) -> None:
        before = trainer.update if self.span.by == "update" else trainer.step
        after = before + (1 if self.span.by == "update" else rollout.num_steps)
        self._visiting = after >= self.span.first and before < self.span.last
        self._arrived = self._arrived or after >= self.span.last
        if self._visiting:
            self.visitor.before_update(trainer, rollout)
            trainer.learner.observer = self.visitor.gradient

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if self._visiting:
            trainer.learner.observer, self._visiting = None, False
            self.last_update = trainer.update
            self.visitor.after(trainer, metrics)
        if self.history.stopped is not None and trainer.update == self.history.stopped[0]:
            trainer.stop(self.history.stopped[1])  # a callback that is not recorded may have done it
        if self._arrived and self.history.row_of(self.last_update) is None:
            self._finish(trainer)  # the run was cut off before its next row
        elif self._change is not None and trainer.step >= self._change and not trainer.spent:
            trainer.suspend("another step budget")

    def on_log(self, trainer: Trainer, row: MetricsRow, timing: dict[str, float]) -> None:
        self.rows[trainer.update] = {name: json_number(name, value) for name, value in row.items()}
        if self._arrived:
            self._finish(trainer)

    def _finish(self, trainer: Trainer) -> None:
        self.done = True
        trainer.suspend("replayed")

    def on_end(self, trainer: Trainer) -> None:
        if not self.done and trainer.over:  # a life of the run is over, and a resume gave it another one
            plain, tensors = split(trainer.state_dict())
            weights = {name: tensor.detach().clone() for name, tensor in trainer.policy.state_dict().items()}
            self.state = (cast("TrainerState", join(plain, tensors)), weights)

    def travel(self, trust: Trust, *, strict: bool) -> None:
        """Train up to the end of the span. A run that was resumed with another budget is resumed here, too."""
        self.check()
        config = quiet(stored_config(self.run.directory, trust, {}))
        folder = self._nearest(strict)
        step = 0 if folder is None else int(folder.name)
        with generators_kept():
            while not self.done:
                budget, self._change = self.history.horizon(step)
                rebuilt = rebuild(with_budget(config, budget), own_process=True)
                try:
                    self._set_out(rebuilt, folder)
                except BaseException:
                    rebuilt.trainer.envs.close()
                    raise
                begin = rebuilt.trainer.step
                rebuilt.trainer.train()
                step = rebuilt.trainer.step
                if not self.done and step == begin:
                    raise SurefootError(
                        f"{self.run.path} ends at update {rebuilt.trainer.update:,} when it is replayed, before "
                        f"{self.span}; its config.toml or its env may have changed since"
                    )

    def _set_out(self, rebuilt: Rebuilt, folder: Path | None) -> None:
        trainer = rebuilt.trainer
        evaluation_env, _ = other_envs(trainer, None, ready_made=False)
        if self.state is not None:
            state, weights = self.state
            trainer.policy.load_state_dict(weights)
            trainer.load_state_dict(state)
            if state["globals"] is not None:
                restore_globals(state["globals"])
        else:
            self._start_at(trainer, folder)
            self.notes += [*rebuilt.notes, *what_differs(trainer, self.run.directory)]
            if self.progress:
                print(f"replaying {self.span} of {self.run.path} from {self.start}", file=sys.stderr, flush=True)
            if not trainer.envs.exact_seeds:
                self.notes.append("note: this env backend takes no seed per episode, so a run cannot be repeated")
        if trainer.target.found is not None:  # the run continued nevertheless
            trainer.target.go_on()
        if trainer.selection.exhausted:
            trainer.selection.go_on()
        trainer.attach(callbacks=[*rebuilt.callbacks, self], evaluation_env=evaluation_env)

    def _start_at(self, trainer: Trainer, folder: Path | None) -> None:
        if folder is not None:
            lost = restore(trainer, folder).lost_envs
            self.start = f"the checkpoint of step {trainer.step:,}"
            if lost:
                envs = ", ".join(map(str, lost))
                self.notes.append(f"note: the open episodes of envs {envs} could not be restored; they start afresh")
        elif trainer.config.run.init_from:
            self.notes += start_from(trainer, Path(trainer.config.run.init_from))

    def _nearest(self, strict: bool) -> Path | None:
        """The newest sound checkpoint before the span; None: the run has to be replayed from its seed on."""
        row = self.history.row_of(self.span.first) if self.span.by == "update" else None
        too_late = self.span.first if row is None else self.history.rows[row]["step"]
        for folder in reversed(steps_of(self.run.directory.checkpoints)):
            if (row is not None or self.span.by == "step") and int(folder.name) >= int(too_late or 0):
                continue
            try:
                if self.span.by == "update" and _updates_of(folder) >= self.span.first:
                    continue
                manifest, _ = read_verified(folder)
                if manifest.get("mid_rollout") and int(folder.name) == self.history.last["step"]:
                    continue  # saved after an error, without the open episodes, and the run did not go on from it
            except CheckpointError as error:
                if strict:
                    raise
                self.notes.append(f"skipped: {error}")
                continue
            return folder
        return None

    def row_differences(self, number: int) -> dict[str, tuple[float | None, float | None]]:
        """The columns of a row whose logged value is not the one computed now: (logged, now)."""
        logged, now = self.history.rows.get(number, {}), self.rows.get(number, {})
        return {name: (logged[name], now[name]) for name in logged if name in now and logged[name] != now[name]}


def quiet(config: TrainConfig) -> TrainConfig:
    """Without videos, trackers and a time limit."""
    return replace(config, run=replace(config.run, max_time=None, video_every=None, trackers=()))


def with_budget(config: TrainConfig, total_steps: int | None) -> TrainConfig:
    return config if total_steps is None else replace(config, run=replace(config.run, total_steps=total_steps))


@contextmanager
def generators_kept() -> Iterator[None]:
    """A replay seeds and restores the global generators as the run did; the caller's must not change."""
    state = capture_globals()
    try:
        yield
    finally:
        restore_globals(state)


def _updates_of(folder: Path) -> int:
    """The updates that were made before a checkpoint."""
    journal = read_json(folder / "state.json").get("journal")
    updates = journal.get("updates") if isinstance(journal, dict) else None
    if not isinstance(updates, int):
        raise CheckpointError(f"{folder / 'state.json'} does not say how many updates were made before it")
    return updates
