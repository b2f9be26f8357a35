"""A tune in words: the best trials so far, the verdict on fresh seeds, and what mattered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from surefoot.sweep.plan import as_text
from surefoot.training.reports.progress import as_return
from surefoot.training.reports.screen import table
from surefoot.tuning.journal import Trial
from surefoot.tuning.rungs import lower_ends
from surefoot.tuning.task import Task
from surefoot.tuning.validate import Checked

SHOWN = 5  # trials, and settings of an importance
MANY = 6  # settings of a trial that a table names


def standing_table(ranked: Sequence[Trial], task: Task) -> Iterable[str]:
    """The best trials so far, with what sets them apart from the default."""
    if not ranked:
        return
    rows = []
    for trial in ranked[:SHOWN]:
        rung = max(trial.scores)
        low = lower_ends({one.number: one.scores[rung] for one in ranked if rung in one.scores})[trial.number]
        steps, returns = task.rungs[rung].steps, trial.scores[rung]
        rows.append((
            str(trial.number),
            f"{steps:,}",
            str(len(returns)),
            as_return(float(np.mean(returns))),
            as_return(low),
            _changes(trial, task),
        ))  # fmt: skip
    yield from table(("trial", "steps", "seeds", "return", "at least", "settings"), rows)


def _changes(trial: Trial, task: Task) -> str:
    if trial.origin == "default":
        return "the default"
    found = changed(trial.values, task)
    shown = [f"{name}={as_text(value)}" for name, value in list(found.items())[:MANY]]
    return " ".join(shown) + (f" and {len(found) - MANY} more" if len(found) > MANY else "")


def changed(values: Mapping[str, object], task: Task) -> dict[str, object]:
    """The settings that differ from the default."""
    usual = task.default.config.flat()
    return {name: value for name, value in values.items() if usual[name] != value}


def checked_table(checked: Checked) -> Iterable[str]:
    """The methods on fresh seeds."""
    rows = [
        (
            name,
            str(len(checked.scores[name])),
            as_return(found.value),
            f"[{as_return(found.low)}, {as_return(found.high)}]",
        )
        for name, found in checked.estimates.items()
    ]
    yield from table(("method", "seeds", "return (IQM)", "95 % interval"), rows)


def verdict(checked: Checked | None, task: Task) -> str:
    """What was found, without calling noise an improvement."""
    if checked is None:
        return "no improvement found: no trial did better than the default in the search"
    if checked.failed:
        return (
            f"no improvement found: the settings that did best in the search failed on fresh seeds ({checked.failed})"
        )
    tuned, default = checked.estimates["tuned"], checked.estimates["default"]
    numbers = f"{as_return(tuned.value)} instead of {as_return(default.value)}"
    if not checked.better:
        said = "are worse than the default" if checked.worse else "cannot be told from the default"
        return (
            f"no improvement found: on fresh seeds, the settings that did best in the search {said} ({numbers}); "
            "a larger --budget tries more of them"
        )
    lines = [
        f"better than the default: {numbers} on {len(task.fresh_seeds)} fresh seeds; the 95 % intervals do not overlap"
    ]
    for name, how in checked.others.items():
        shipped = checked.estimates[name].value
        rather = f" ({as_return(shipped)}): rather use that one" if shipped > tuned.value else ""
        lines.append(f"{how} the {name}{rather}")
    return "; ".join(lines)


def importance_table(importances: Mapping[str, float]) -> Iterable[str]:
    """What set the best quarter of the trials apart."""
    shown = list(importances.items())[:SHOWN]
    yield from table(("what mattered", "share"), [(name, f"{share:.0%}") for name, share in shown])
