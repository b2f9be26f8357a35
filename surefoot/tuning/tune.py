"""A tune from its folder to its result: search, check on fresh seeds, write down."""

from __future__ import annotations

from surefoot.errors import SurefootError
from surefoot.tuning.budget import Budget, Stopwatch
from surefoot.tuning.folder import TuneFolder
from surefoot.tuning.journal import Journal
from surefoot.tuning.outcome import Tuned, write_outcome
from surefoot.tuning.rungs import lower_ends
from surefoot.tuning.search import Say, Search, ranking
from surefoot.tuning.task import Task
from surefoot.tuning.trial_runner import TrialRunner
from surefoot.tuning.validate import Found, validate
from surefoot.tuning.wording import checked_table, importance_table


def carry_out_tune(
    folder: TuneFolder, task: Task, budget: Budget, runner: TrialRunner, stopwatch: Stopwatch, say: Say
) -> Tuned:
    """Search until the budget is spent, then check what did best. Continues what is in the folder."""
    journal = Journal(folder.journal, task.space, task.wish.seed)
    Search(task, journal, folder.trials, runner, budget, stopwatch, say).run()
    trials = journal.trials()
    ranked = ranking(trials, task.rungs)
    if all(trial.origin == "default" for trial in ranked):
        raise SurefootError(
            f"the budget ({budget}) was too small for a single trial beside the default; "
            f"give more (--budget), or train for fewer than {task.wish.total_steps:,} steps (--total-steps)"
        )
    best = None if ranked[0].origin == "default" else ranked[0]
    checked = None
    if best is not None:
        others = "the default" if task.shipped is None else f"the default and the preset {task.shipped}"
        say(f"\nchecking trial {best.number} beside {others}: {len(task.fresh_seeds)} seeds that it was not chosen by")
        checked = validate(task, best, folder.validation, runner)
    first = {trial.number: trial.scores[0] for trial in ranked if 0 in trial.scores}
    found = Found(len(trials), stopwatch.seconds, best, checked, journal.importances(lower_ends(first)))
    tuned = write_outcome(folder, task, found)
    if checked is not None:
        for line in checked_table(checked):
            say(line)
    if found.importances:
        say("")
        for line in importance_table(found.importances):
            say(line)
    say(f"\n{tuned.verdict}")
    return tuned
