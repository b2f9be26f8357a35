"""The search: rounds of trials that Optuna proposes, each round thinned out by successive halving.

A round is repeatable: what it does next follows from the journal and the runs on disk. So a tune that was killed goes
on where it was, and its runs are resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from surefoot.errors import SurefootError, UsageError
from surefoot.sweep.folder import SweepFolder
from surefoot.sweep.plan import Planned
from surefoot.sweep.progress import Tracked
from surefoot.tuning.budget import Budget, Stopwatch
from surefoot.tuning.journal import Journal, Trial
from surefoot.tuning.rungs import FACTOR, Rung, best, first_rung, lower_ends, round_cost, round_size, survivors
from surefoot.tuning.task import Task
from surefoot.tuning.trial_runner import TrialRunner, seconds_per_step
from surefoot.tuning.wording import standing_table

MOST_FAILURES = 10  # in a row
MARGIN = 1.25  # on the time that the check on fresh seeds is expected to take: its evaluations have more episodes
Say = Callable[[str], None]


class Search:
    """Carries out rounds until the budget is spent."""

    def __init__(
        self,
        task: Task,
        journal: Journal,
        folder: SweepFolder,
        runner: TrialRunner,
        budget: Budget,
        stopwatch: Stopwatch,
        say: Say,
    ) -> None:
        self.task, self.journal, self.folder, self.runner = task, journal, folder, runner
        self.budget, self.stopwatch, self.say = budget, stopwatch, say
        self._failures = 0  # in a row
        self._speed: float | None = None  # seconds per step, as far as trials have shown it

    def run(self) -> None:
        while not self._is_over():
            trials = self.journal.trials()
            self._speed = self._slowest(trials)
            open_ones = [trial for trial in trials if trial.state == "open"]
            number = open_ones[0].round if open_ones else max((trial.round for trial in trials), default=-1) + 1
            if not self._fill(number, trials):
                return
            self._carry(number)
            self.report()

    def report(self) -> None:
        """Show the best trials so far."""
        for line in standing_table(ranking(self.journal.trials(), self.task.rungs), self.task):
            self.say(line)

    def _is_over(self) -> bool:
        """Whether only the time for the check on fresh seeds is left."""
        if self.budget.seconds is None:
            return False
        return self.stopwatch.seconds + self.reserve() >= self.budget.seconds

    def reserve(self) -> float:
        """Seconds that the check on fresh seeds will take."""
        runs = self.task.methods * self.task.wish.validation_seeds
        turns = -(-runs // self.runner.slots)
        speed = self._speed if self._speed is not None else self.runner.seconds_per_step()
        return turns * self.task.wish.total_steps * speed * MARGIN

    def _slowest(self, trials: Sequence[Trial]) -> float | None:
        """Seconds per step of the default and of the best trial, which the check will run."""
        first = [found[0] for found in [ranking(trials, self.task.rungs)] if found]
        known = [
            trial.seconds_per_step
            for trial in (*first, *(one for one in trials if one.origin != "sampler"))
            if trial.seconds_per_step
        ]
        return max(known, default=None)

    def _fill(self, number: int, trials: Sequence[Trial]) -> bool:
        """Draw the trials of a round, unless that was done before; False: the budget allows no more."""
        there = [trial for trial in trials if trial.round == number]
        if any(trial.scores or trial.state != "open" for trial in there):
            return True  # it is under way
        size = self._size(number, len(trials) - len(there), trials)
        if not size:
            return False
        first = {origin: at for origin, at in self.task.first_trials.items() if number == 0}
        for origin, positions in first.items():
            if len(there) < size and all(trial.origin != origin for trial in there):
                there.append(self.journal.ask(number, origin, positions))
        while len(there) < size:
            there.append(self.journal.ask(number))
        return True

    def _size(self, number: int, before: int, trials: Sequence[Trial]) -> int:
        """Trials of a round; 0: none. `before`: how many there were in earlier rounds."""
        rungs = self.task.rungs[first_rung(number) :]
        wanted = max(round_size(rungs[0].number), self.runner.slots // len(rungs[0].seeds) // FACTOR * FACTOR)
        if self._failures:
            wanted = min(wanted, MOST_FAILURES - self._failures)
        if self.budget.trials is not None:
            return max(0, min(wanted, self.budget.trials - before))
        speeds = [trial.seconds_per_step for trial in trials if trial.seconds_per_step]
        if not speeds or self.budget.seconds is None:
            return wanted
        left = self.budget.seconds - self.stopwatch.seconds - self.reserve()
        steps = left * self.runner.slots / (sum(speeds) / len(speeds))
        return next((size for size in range(wanted, 1, -1) if round_cost(size, rungs) <= steps), 0)

    def _carry(self, number: int) -> None:
        """The rungs of a round, each with the best trials of the one before. The default and the shipped preset reach
        the last one in any case: whatever is preferred to them there is so with all steps.
        """
        rungs = self.task.rungs[first_rung(number) :]
        there = [trial for trial in self.journal.trials() if trial.round == number]
        alive = [trial.number for trial in there if trial.state != "failed"]
        always = {trial.number for trial in there if trial.origin != "sampler"}
        for climbed, rung in enumerate(rungs):
            if climbed:
                alive = self._halve(alive, rungs[climbed - 1], survivors(len(there), climbed), always)
            self.say(
                f"\nround {number + 1}, rung {rung.number + 1} of {len(self.task.rungs)}: {len(alive)} "
                f"trial{'s' * (len(alive) != 1)}, {len(rung.seeds)} seeds × {rung.steps:,} steps each"
            )
            alive, complete = self._test(alive, rung)
            if not complete or not alive:
                return
        ends = lower_ends(self._scores(alive, rungs[-1]))
        for trial, value in ends.items():
            self.journal.close(trial, "complete", value)

    def _scores(self, trials: Sequence[int], rung: Rung) -> dict[int, Sequence[float]]:
        known = {trial.number: trial.scores for trial in self.journal.trials()}
        return {number: known[number][rung.number] for number in trials if rung.number in known[number]}

    def _halve(self, trials: Sequence[int], rung: Rung, number: int, always: set[int]) -> list[int]:
        """The best trials of a rung, and those of `always`; the others are dropped."""
        scores = self._scores(trials, rung)
        kept = best(scores, number)
        kept += [trial for trial in scores if trial in always and trial not in kept]
        for trial in trials:
            if trial not in kept:
                self.journal.close(trial, "dropped")
        return kept

    def _test(self, trials: Sequence[int], rung: Rung) -> tuple[list[int], bool]:
        """(the trials that have a score on this rung, whether the time sufficed for all of them)."""
        values = {trial.number: trial.values for trial in self.journal.trials()}
        planned: dict[int, list[Planned]] = {}
        done: dict[int, list[float]] = {}
        for trial in trials:
            try:
                planned[trial] = self.task.runs_of(trial, values[trial], rung)
            except UsageError as error:
                self._fail(trial, str(error))
        runs = self.runner.carry(self.folder, (run for own in planned.values() for run in own), self._is_over)
        by_name = {run.name: run for run in runs}
        own_runs = {trial: [by_name[run.name] for run in own] for trial, own in planned.items()}
        for trial, own in own_runs.items():
            why = _failure(own)
            if why is not None:
                self._fail(trial, why)
            elif all(run.stage == "done" for run in own):
                done[trial] = [run.eval_return or 0.0 for run in own]
                self._failures = 0
        ends = lower_ends(done)
        for trial, scores in done.items():
            self.journal.report(trial, rung.number, scores, ends[trial], seconds_per_step(own_runs[trial]))
        unfinished = any(run.stage in ("waiting", "unfinished") for own in own_runs.values() for run in own)
        return list(done), not unfinished

    def _fail(self, trial: int, why: str) -> None:
        self.journal.close(trial, "failed", why=why)
        self.say(f"trial {trial} failed: {why}")
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise SurefootError(f"{MOST_FAILURES} trials in a row failed, the last one with: {why}")


def _failure(runs: Sequence[Tracked]) -> str | None:
    """Why a trial has failed, if one of its runs has."""
    for run in runs:
        if run.stage == "failed":
            return f"seed {run.run.seed}: {run.error}"
        if run.stage == "done" and (run.eval_return is None or not isfinite(run.eval_return)):
            return f"seed {run.run.seed}: its final evaluation has no finite return"
    return None


def ranking(trials: Sequence[Trial], rungs: Sequence[Rung]) -> list[Trial]:
    """The best first: trials that came further before others, and among those the ones with the highest lower end."""
    by_number = {trial.number: trial for trial in trials if trial.state != "failed"}
    found: dict[int, Trial] = {}
    for rung in reversed(rungs):
        scores = {number: one.scores[rung.number] for number, one in by_number.items() if rung.number in one.scores}
        found |= {number: by_number[number] for number in best(scores, len(scores)) if number not in found}
    return list(found.values())
