"""Learning curves as a picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from surefoot.analysis.curves import AXES
from surefoot.analysis.plotting import Line, Panel, Plot
from surefoot.analysis.statistics import Array
from surefoot.drawing import BLACK, line_look, new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MARKERS = 7  # along a line
MOST_LABELS = 16
TITLES = {  # metric -> what it is called on an axis
    "episode_return": "return of training episodes",
    "eval_return": "greedy evaluation return",
    "kl": "KL(old‖new)",
}


def curves_figure(plot: Plot) -> Figure:
    """A panel per env, up to three in a row."""
    columns = min(3, len(plot.panels))
    rows = -(-len(plot.panels) // columns)
    alone = len(plot.panels) == 1
    figure = new_figure(8.6 if alone else 4.3 * columns + 0.4, 4.8 if alone else 3.5 * rows + 0.8)
    axes = figure.subplots(rows, columns, squeeze=False)
    draw_panels(list(axes.flat), columns, plot.panels, plot)
    if fits_labels(plot.panels):
        label_ends(axes[0, 0], plot.panels[0].lines)
    else:
        legend(figure)
    figure.supxlabel(plot.caption, x=0.99, ha="right", fontsize=8, color="#666666")
    return figure


def draw_panels(places: Sequence[Axes], columns: int, panels: Sequence[Panel], plot: Plot) -> None:
    """A grid of panels; the vertical axis is named where it is not the one to the left of it."""
    titles = [panel.y_title or TITLES.get(plot.metric, plot.metric) for panel in panels]
    for i, place in enumerate(places):
        if i >= len(panels):
            place.set_visible(False)
            continue
        draw_panel(place, panels[i], plot)
        if i % columns == 0 or titles[i] != titles[i - 1]:
            place.set_ylabel(titles[i])


def draw_panel(axes: Axes, panel: Panel, plot: Plot) -> None:
    for line in panel.lines:
        draw_line(axes, line)
    axes.set_title(panel.env, loc="left", fontweight="bold")
    axes.set_xlabel(panel.x_title or AXES[plot.axis][1])
    if plot.axis != "time":
        axes.xaxis.set_major_formatter(lambda value, _: compact(value))
    axes.margins(x=0.02)


def draw_line(axes: Axes, line: Line) -> None:
    style, band = line_look(line.index), line.band
    if band.spread != "none":
        axes.fill_between(band.x, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0.0)
        for edge in (band.low, band.high):  # told apart in grey, too
            axes.plot(band.x, edge, color=style.colour, alpha=0.35, linewidth=0.6)
    every = max(1, len(band.x) // MARKERS)
    first = (line.index * every // 5) % max(1, every)  # not all at the same x
    axes.plot(
        band.x,
        band.middle,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=5.0,
        markeredgecolor="white",
        markeredgewidth=0.6,
        markevery=(first, every),
        label=line.name,
    )


def fits_labels(panels: Sequence[Panel]) -> bool:
    """Whether there is room for names beside the lines; otherwise there is a legend."""
    return len(panels) == 1 and len(panels[0].lines) <= MOST_LABELS


def label_ends(axes: Axes, lines: tuple[Line, ...]) -> None:
    """Each line's name beside its end, moved apart where ends lie close to each other."""
    if not lines:
        return
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    ordered = sorted(lines, key=lambda line: float(line.band.middle[-1]))
    ends = np.array([(float(line.band.middle[-1]) - bottom) / (top - bottom) for line in ordered])
    places = spread_out(ends, 0.052)
    for line, place in zip(ordered, places, strict=True):
        style = line_look(line.index)
        count = f"  ({line.band.runs} runs)" if line.band.runs > 1 else ""
        axes.annotate(
            f"{line.name}{count}",
            (float(line.band.x[-1]), float(line.band.middle[-1])),
            xytext=(1.035, place),
            textcoords="axes fraction",
            color=style.colour,
            va="center",
            annotation_clip=False,
            # From the middle of the name's left edge, so that no connector runs through another name.
            arrowprops={
                "arrowstyle": "-",
                "color": style.colour,
                "linewidth": 0.7,
                "alpha": 0.6,
                "shrinkB": 2.0,
                "relpos": (0.0, 0.5),
            },
        )


def spread_out(places: Array, gap: float) -> Array:
    """Ascending places moved as little as needed to lie `gap` apart, within 0 to 1 as far as they fit."""
    moved = np.array(places, np.float64)
    for _ in range(200):
        close = moved[1:] - moved[:-1] < gap - 1e-9
        if not close.any():
            break
        for i in np.flatnonzero(close):
            short = (gap - (moved[i + 1] - moved[i])) / 2.0
            moved[i] -= short
            moved[i + 1] += short
    over, under = max(0.0, moved[-1] - 1.0), max(0.0, -moved[0])
    return np.asarray(moved - over if over else moved + under)


def legend(figure: Figure | SubFigure) -> None:
    """One for all panels, above them."""
    handles: dict[str, Artist] = {}
    for place in figure.axes:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper left",
        ncols=min(5, len(handles)),
        handlelength=3.4,
        labelcolor=BLACK,
    )


def compact(value: float) -> str:
    """50000 → 50k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
