"""Which of several methods is better, as far as their runs can tell: `compare(runs)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.analysis.bounds import Bounds, that_hold
from surefoot.analysis.curves import Curve
from surefoot.analysis.groups import Group, Member, group_runs
from surefoot.analysis.intervals import (
    Estimate,
    improvement_interval,
    interval,
    is_settled,
    seeds_needed,
    share_interval,
)
from surefoot.analysis.over_envs import curves_together
from surefoot.analysis.plotting import SHORT, Library, Panel, Plot, Style, known_bounds, plot_groups
from surefoot.analysis.scores import Reached, Scoring, normalise, normalised_bounds, reach, usual_threshold
from surefoot.analysis.statistics import Array, Tasks, iqm, mean, median, optimality_gap, profile
from surefoot.errors import SurefootError, UsageError, did_you_mean
from surefoot.runs import Run
from surefoot.runs.directory import shell_path
from surefoot.text import one_line

References = Mapping[str, tuple[float, float]]
NAMED = 5  # runs that are left out and named
MOST_SEEDS = 1_000  # beyond which the answer is "they look equal"


@dataclass(frozen=True)
class Summary:
    """A method's line in a table."""

    name: str
    index: int  # the group's place, which decides its look in every picture
    runs: int
    mean: Estimate
    median: Estimate
    iqm: Estimate
    gap: Estimate  # in normalised scores
    improvement: Estimate | None  # P(the best beats this one); None for the best itself
    seeds_needed: int | None  # per method and env, to settle it; None: settled, the best itself, or no end in sight
    reached: Reached | None  # None in the table over all envs

    @property
    def settled(self) -> bool | None:
        """Whether it is worse than the best; None for the best, and where there is one seed only."""
        if self.improvement is None or np.isnan(self.improvement.low):
            return None
        return is_settled(self.improvement)


@dataclass(frozen=True)
class Profile:
    """Share of a method's runs above each normalised score."""

    name: str
    index: int
    thresholds: Array
    share: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class ComparisonTable:
    """The methods on one env (returns as they are), or on all of them (normalised), the best first."""

    env: str | None
    summaries: tuple[Summary, ...]
    profiles: tuple[Profile, ...]


@dataclass(frozen=True)
class Comparison:
    scoring: Scoring
    tables: tuple[ComparisonTable, ...]  # one per env; with several envs, one over all of them comes first
    curves: Plot
    together: Panel | None  # curves over all envs, normalised; None for one env
    references: References  # by env: the scores that are 0 and 1 when normalised
    notes: tuple[str, ...]


Scores = dict[str, dict[str, Array]]  # env -> group -> a score per run


@np.errstate(over="ignore", invalid="ignore")  # returns of 1e300 happen; what overflows is shown as inf or nan
def compare(
    runs: Sequence[Run],
    *,
    metric: str | None = None,
    at_step: int | None = None,
    references: References | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare the groups that these runs fall into.

    `metric`, `at_step`: compare this metric, at this step, instead of the final evaluations. `references`: by env, the
    scores that count as 0 and as 1 (if not given: the lowest and the highest score of all these runs). `thresholds`: by
    env, the score to show the steps to.
    """
    groups, notes = group_runs(runs)
    if not groups:
        raise UsageError("\n".join(["none of these runs can be read", *notes]))
    library = Library()
    curve_metric = _curve_metric(groups, library, metric)
    scoring = Scoring(curve_metric if metric is None and at_step is not None else metric, at_step)
    scores, left_out = _scores(groups, scoring, library, notes)
    _check_envs(references or {}, scores, "--reference")
    _check_envs(thresholds or {}, scores, "--threshold")
    known = {**_observed(scores), **(references or {})}
    bounds = _bounds(groups, scoring, scores)
    curves = plot_groups(groups, library, curve_metric, Style())
    together = curves_together(groups, library, curves, references or {})
    notes += _on_lengths([one for group in groups for one in group.members if one not in left_out], library, scoring)
    names = [group.name for group in groups]
    tables = []
    for env, by_group in scores.items():
        arrivals = _arrivals(groups, env, library, curve_metric, (thresholds or {}).get(env))
        alone = {name: {env: by_group[name]} for name in names if name in by_group}
        tables.append(_table(env, names, alone, known, bounds, arrivals))
    complete = [env for env, by_group in scores.items() if len(by_group) == len(names)]
    if len(scores) > 1:
        notes += _on_gaps(scores, names)
    if len(complete) > 1:
        on_all = {name: {env: scores[env][name] for env in complete} for name in names}
        tables.insert(0, _table(None, names, on_all, known, bounds, {}))
    notes += _on_single_seeds(scores, groups)
    return Comparison(scoring, tuple(tables), curves, together, known, tuple(dict.fromkeys([*notes, *library.notes])))


def _curve_metric(groups: Sequence[Group], library: Library, metric: str | None) -> str:
    """What curves and thresholds are about: greedy evaluations if every run has them, else the training return."""
    members = [member for group in groups for member in group.members]
    if metric is not None:
        library.check_metric(metric, members)
        return metric
    evaluated = all(len(library.curve(member, "eval_return").x) > 1 for member in members)
    return "eval_return" if evaluated else "episode_return"


def _scores(
    groups: Sequence[Group], scoring: Scoring, library: Library, notes: list[str]
) -> tuple[Scores, list[Member]]:
    """(scores by env and group, the runs that have none)."""
    found: dict[str, dict[str, list[float]]] = {}
    missing: list[tuple[Member, str]] = []
    for group in groups:
        for member in group.members:
            try:
                score = scoring.score(member, library)
            except (SurefootError, OSError) as error:
                missing.append((member, str(error)))
                continue
            found.setdefault(member.env, {}).setdefault(group.name, []).append(score)
    if not found:
        what = f"{len(missing)} runs have no score, for example" if len(missing) > 1 else "there is no score for"
        why = f"{one_line(str(missing[0][0].run.path))}: {missing[0][1]}"
        advice = "; to compare the training returns: --metric episode_return" if scoring.metric is None else ""
        raise UsageError(f"{what} {why}{advice}")
    notes += [f"{one_line(str(member.run.path))} is left out: {why}" for member, why in missing[:NAMED]]
    if len(missing) > NAMED:
        notes.append(f"{len(missing) - NAMED} more runs are left out")
    if missing:
        notes.append("runs that are left out may have failed; without them, a method looks better than it is")
    scores = {env: {name: np.array(values) for name, values in by.items()} for env, by in found.items()}
    return scores, [member for member, _ in missing]


def _observed(scores: Scores) -> dict[str, tuple[float, float]]:
    every = {env: np.concatenate(list(by_group.values())) for env, by_group in scores.items()}
    return {env: (float(found.min()), float(found.max())) for env, found in every.items()}


def _bounds(groups: Sequence[Group], scoring: Scoring, scores: Scores) -> dict[str, Bounds]:
    """By env: the limits of its scores, as far as they are known."""
    found = {}
    for env, by_group in scores.items():
        known = known_bounds(scoring.metric, [member for group in groups for member in group.on(env)])
        found[env] = that_hold(known, np.concatenate(list(by_group.values())))
    return found


def _check_envs(named: Iterable[str], scores: Scores, flag: str) -> None:
    for env in named:
        if env not in scores:
            raise UsageError(f"{flag} names '{env}'{did_you_mean(env, scores)} (the runs are on {', '.join(scores)})")


def _arrivals(
    groups: Sequence[Group], env: str, library: Library, metric: str, threshold: float | None
) -> dict[str, Reached]:
    curves: dict[str, list[Curve]] = {}
    for group in groups:
        found = [library.curve(member, metric) for member in group.on(env)]
        if any(len(curve.x) for curve in found):
            curves[group.name] = [curve for curve in found if len(curve.x)]
    if not curves:
        return {}
    wanted = usual_threshold(list(curves.values())) if threshold is None else threshold
    return {name: reach(found, wanted) for name, found in curves.items()}


def _table(
    env: str | None,
    names: Sequence[str],  # all groups; their order determines their colours
    groups: Mapping[str, Mapping[str, Array]],
    references: References,
    bounds: References,
    arrivals: Mapping[str, Reached],
) -> ComparisonTable:
    normal = {name: normalise(by_env, references) for name, by_env in groups.items()}
    shown: dict[str, Tasks] = normal if env is None else {name: list(by.values()) for name, by in groups.items()}
    ordered = sorted(groups, key=lambda name: -float(iqm(shown[name])))
    best = ordered[0]
    summaries = []
    for name in ordered:
        tasks = shown[name]
        improvement = None if name == best else improvement_interval(shown[best], tasks)
        normal_limits = normalised_bounds(bounds, references, groups[name])
        limits = normal_limits if env is None else [bounds[env]]
        summaries.append(
            Summary(
                name=name,
                index=names.index(name),
                runs=sum(map(len, tasks)),
                mean=interval(tasks, mean, bounds=limits),
                median=interval(tasks, median, bounds=limits),
                iqm=interval(tasks, iqm, bounds=limits),
                gap=interval(normal[name], optimality_gap, bounds=normal_limits),
                improvement=improvement,
                seeds_needed=_more_seeds(improvement, [len(scores) for scores in (*shown[best], *tasks)], len(tasks)),
                reached=arrivals.get(name),
            )
        )
    return ComparisonTable(
        env, tuple(summaries), tuple(_profile(name, names.index(name), normal[name]) for name in ordered)
    )


def _more_seeds(improvement: Estimate | None, counts: Sequence[int], tasks: int) -> int | None:
    if improvement is None or np.isnan(improvement.low) or is_settled(improvement):
        return None
    needed = seeds_needed(improvement.value, tasks, MOST_SEEDS)
    return None if needed is None else max(needed, min(counts) + 1)


def _profile(name: str, index: int, tasks: Tasks) -> Profile:
    pooled = np.concatenate(list(tasks))
    thresholds = np.linspace(0.0, max(1.0, float(pooled.max())), 101)
    share = profile(tasks, thresholds)
    return Profile(name, index, thresholds, share, *share_interval(share, len(pooled)))


def _on_lengths(members: Sequence[Member], library: Library, scoring: Scoring) -> list[str]:
    ends: dict[str, list[float]] = {}
    for member in members:
        steps = library.curve(member, "step").x
        if len(steps):
            ends.setdefault(member.env, []).append(float(steps[-1]))
    if scoring.at_step is not None:
        return []
    return [
        f"runs on {env} end between {min(found):,.0f} and {max(found):,.0f} steps, and longer runs have an advantage; "
        f"--at-step {min(found):.0f} compares them at the same step"
        for env, found in ends.items()
        if min(found) < SHORT * max(found)
    ]


def _on_gaps(scores: Scores, names: Sequence[str]) -> list[str]:
    missing = [(name, env) for env, by_group in scores.items() for name in names if name not in by_group]
    said = [f"{name} has no score on {env}" for name, env in missing]
    return [f"{'; '.join(said)}: the table over all envs has only those that every method was run on"] if said else []


def _on_single_seeds(scores: Scores, groups: Sequence[Group]) -> list[str]:
    alone = [(name, env) for env, by_group in scores.items() for name, found in by_group.items() if len(found) < 2]
    if not alone:
        return []
    first = next(group for group in groups if group.name == alone[0][0]).on(alone[0][1])[0]
    seed = 0 if first.seed is None else first.seed + 1
    return [
        f"one seed only: {', '.join(f'{name} on {env}' for name, env in alone)}. A single seed says nothing about "
        "chance: there is no interval, and no answer to which is better. Run other seeds, for example: "
        f"surefoot train --like {shell_path(first.run.path)} --seed {seed}"
    ]
