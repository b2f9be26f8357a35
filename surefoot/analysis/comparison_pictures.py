"""The pictures of a comparison. Needs matplotlib."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from surefoot.analysis.comparison import Comparison, ComparisonTable
from surefoot.analysis.intervals import Estimate
from surefoot.analysis.pictures import draw_panels, fits_labels, label_ends, legend
from surefoot.drawing import BLACK, LineLook, line_look, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MOST_BANDS = 3  # in a profile: more would hide the lines


def comparison_figure(comparison: Comparison) -> Figure:
    """Everything on one page: learning curves, and below what the scores say, over all envs if there are several."""
    first = [] if comparison.together is None else [comparison.together]
    panels = [*first, *(panel for panel in comparison.curves.panels if panel.lines)][:6]
    columns = max(1, min(3, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    methods = len(comparison.tables[0].summaries)
    below = 1.6 + 0.34 * methods
    figure = new_figure(11.5, 3.6 * rows + below + 0.6)
    (above,), (under,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.6 * rows, below + 0.2))
    places = above.subplots(rows, columns, squeeze=False)
    draw_panels(list(places.flat), columns, panels, comparison.curves)
    if fits_labels(panels):
        label_ends(places[0, 0], panels[0].lines)
    else:
        legend(above)
    draw_table(under, comparison.tables[0])
    caption = comparison.curves.caption.removeprefix("line: ")
    under.supxlabel(f"curves: {caption}", x=0.99, ha="right", fontsize=8, color="#666666")
    return figure


def table_figure(table: ComparisonTable) -> Figure:
    figure = new_figure(11.5, 1.9 + 0.34 * len(table.summaries))
    draw_table(figure, table)
    return figure


def draw_table(figure: Figure | SubFigure, table: ComparisonTable) -> None:
    """IQM with its interval, probability of improvement (unless there is one method only), performance profile."""
    several = len(table.summaries) > 1
    scores, *improvement, profile = figure.subplots(1, 2 + several, width_ratios=(1.15, *[0.85] * several, 1.0))
    _intervals(scores, table)
    for place in improvement:
        _improvements(place, table)
    _profiles(profile, table)


def _intervals(axes: Axes, table: ComparisonTable) -> None:
    for place, found in enumerate(reversed(table.summaries)):
        _bar(axes, place, found.iqm, line_look(found.index))
    axes.set_yticks(range(len(table.summaries)), [found.name for found in reversed(table.summaries)])
    axes.set_ylim(-0.6, len(table.summaries) - 0.4)
    axes.set_title(f"score on {table.env}" if table.env else "normalised score, all envs", loc="left")
    axes.set_xlabel("IQM over runs, 95 % interval")
    axes.locator_params(axis="x", nbins=5)


def _bar(axes: Axes, place: int, found: Estimate, style: LineLook) -> None:
    if not isnan(found.low):
        ends = [found.low, found.high]
        axes.plot(ends, [place, place], color=style.colour, linewidth=7.0, alpha=0.3, solid_capstyle="butt")
    axes.plot(found.value, place, marker=style.marker, color=style.colour, markersize=8.0, clip_on=False)


def _improvements(axes: Axes, table: ComparisonTable) -> None:
    best, *others = table.summaries
    axes.axvline(0.5, color=BLACK, linewidth=0.9, linestyle=":")
    for place, found in enumerate(reversed(others)):
        if found.improvement is not None:
            _bar(axes, place, found.improvement, line_look(found.index))
    axes.set_xlim(0.0, 1.0)
    axes.set_yticks(range(len(others)), [found.name for found in reversed(others)])
    axes.set_ylim(-0.6, max(len(others), 1) - 0.4)
    axes.set_title(f"does {best.name} beat it?", loc="left")
    axes.set_xlabel("probability (½: no difference)")


def _profiles(axes: Axes, table: ComparisonTable) -> None:
    for found in table.profiles:
        style = line_look(found.index)
        if len(table.profiles) <= MOST_BANDS:
            edges = (found.low, found.high)
            axes.fill_between(found.thresholds, *edges, color=style.colour, alpha=0.12, linewidth=0.0, step="post")
        every = max(1, len(found.thresholds) // 5)
        axes.plot(
            found.thresholds,
            found.share,
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markersize=4.5,
            markevery=(found.index * every // 4 % every, every),
            linewidth=1.7,
            drawstyle="steps-post",
            label=found.name,
        )
    axes.set_ylim(-0.03, 1.03)
    axes.set_title("performance profile", loc="left")
    axes.set_xlabel("normalised score τ")
    axes.set_ylabel("share of runs above τ")
