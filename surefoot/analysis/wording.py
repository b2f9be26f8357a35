"""A comparison in words and numbers: cells of a table, verdicts, CSV, plain data for JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np

from surefoot.analysis.comparison import MOST_SEEDS, Comparison, ComparisonTable, Summary
from surefoot.analysis.intervals import Estimate

ESTIMATES = ("mean", "median", "iqm", "gap", "improvement")


def number(value: float) -> str:
    """A score in about four digits; two of a small one."""
    size = abs(value)
    if 0.0 < size < 0.01:
        return f"{value:.2g}"
    if size >= 1e9:
        return f"{value:.4g}"
    return f"{value:,.0f}" if size >= 10_000 else f"{value:,.1f}" if size >= 100 else f"{value:.2f}"


def estimate(found: Estimate | None) -> str:
    """`495.6 [482.9, 501.9]`; without an interval the value alone."""
    if found is None:
        return "–"
    if math.isnan(found.low):
        return number(found.value)
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def title(table: ComparisonTable) -> str:
    if table.env is not None:
        return table.env
    return "all envs together (scores normalised: 0 and 1 are the references of each env)"


def columns(table: ComparisonTable) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, the best method first."""
    best = table.summaries[0].name
    threshold = next((found.reached.threshold for found in table.summaries if found.reached is not None), None)
    names = ["method", "runs", "IQM [95 %]", "mean [95 %]", "median", "gap"]
    if len(table.summaries) > 1:
        names.append(f"P({best} better) [95 %]")
    if threshold is not None:
        names.append(f"steps to {threshold:,g}")
    rows = []
    for found in table.summaries:
        row = [found.name, str(found.runs), estimate(found.iqm), estimate(found.mean)]
        row += [number(found.median.value), f"{found.gap.value:.2f}"]
        if len(table.summaries) > 1:
            row.append(estimate(found.improvement))
        if threshold is not None:
            row.append(steps(found))
        rows.append(row)
    return names, rows


def brief_columns(table: ComparisonTable) -> tuple[list[str], list[list[str]]]:
    """The columns that a narrow terminal has room for."""
    names, rows = columns(table)
    kept = [i for i, name in enumerate(names) if name not in ("mean [95 %]", "median", "gap")]
    short = ["P(best better)" if names[i].startswith("P(") else names[i] for i in kept]
    return short, [[row[i] for i in kept] for row in rows]


def steps(found: Summary) -> str:
    """`28,160`, or how many of the runs got there if it was fewer than half."""
    if found.reached is None:
        return "–"
    share = f"{found.reached.reached}/{found.reached.runs}"
    if found.reached.steps is None:
        return f"not reached ({share})"
    return f"{found.reached.steps:,.0f}" + ("" if found.reached.reached == found.reached.runs else f" ({share})")


def verdicts(table: ComparisonTable) -> Iterator[str]:
    """For every method but the best: whether the difference can be chance, and what would settle it."""
    best, *others = table.summaries
    for other in others:
        if other.improvement is None or math.isnan(other.improvement.value):
            continue
        if other.settled is None:
            yield f"{best.name} or {other.name}: nothing can be said with one seed"
        elif other.settled:
            yield f"{best.name} is better than {other.name}"
        elif other.seeds_needed is None:
            yield f"{best.name} or {other.name}: no visible difference; {MOST_SEEDS:,} seeds each might not show one"
        else:
            per = "" if table.env is not None else " on every env"
            yield f"{best.name} or {other.name}: open; about {other.seeds_needed} seeds each{per} would settle it"


def to_csv(comparison: Comparison) -> str:
    """A line per env and method; an empty cell where there is no number."""
    text = io.StringIO()
    parts = [f"{name}{end}" for name in ESTIMATES for end in ("", "_low", "_high")]
    last = ["settled", "seeds_needed", "threshold", "steps_to_threshold", "reached"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["env", "method", "runs", *parts, *last])
    for table in comparison.tables:
        for found in table.summaries:
            numbers = [part for name in ESTIMATES for part in _parts(getattr(found, name))]
            reached = found.reached
            arrival = ["", "", ""] if reached is None else [reached.threshold, reached.steps, reached.reached]
            cells = [*numbers, found.settled, found.seeds_needed, *arrival]
            writer.writerow([table.env or "all", found.name, found.runs, *("" if c is None else c for c in cells)])
    return text.getvalue()


def _parts(found: Estimate | None) -> list[float | None]:
    values = [math.nan] * 3 if found is None else [found.value, found.low, found.high]
    return [None if math.isnan(value) else value for value in values]


def to_data(value: object) -> object:
    """Dataclasses and arrays as what JSON knows; no number (NaN) is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return to_data(value.tolist())
    if isinstance(value, dict):
        return {str(name): to_data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_data(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
