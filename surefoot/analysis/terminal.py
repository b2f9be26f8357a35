"""Curves in a terminal, as braille dots: two by four to a character, a letter per line. Needs no extra."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.analysis.pictures import compact
from surefoot.analysis.plotting import Line, Panel, Plot
from surefoot.analysis.statistics import Array

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a braille character
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLOURS = ("blue", "red", "green", "magenta", "yellow", "cyan")
HEIGHT = 14  # lines


@dataclass(frozen=True)
class Cell:
    """A character of the picture and the line that it belongs to; None: the frame."""

    text: str
    line: int | None = None


def draw_panel(panel: Panel, plot: Plot, width: int, height: int = HEIGHT, *, braille: bool = True) -> list[list[Cell]]:
    """Lines of cells: the picture with its axes, then a legend."""
    if not panel.lines:
        return [[Cell(f"{panel.env}: nothing to draw")]]
    x = np.concatenate([line.band.x for line in panel.lines])
    y = np.concatenate([line.band.middle for line in panel.lines])
    left, right, low, high = float(x.min()), float(x.max()), float(y.min()), float(y.max())
    if low == high:
        low, high = low - 1.0, high + 1.0
    marks = [_short(value) for value in (high, (low + high) / 2.0, low)]
    margin = max(map(len, marks)) + 1
    columns = max(10, width - margin - 2)
    canvas = _Canvas(columns, height, (left, right), (low, high), braille)
    for line in panel.lines:
        canvas.trace(line)
    rows = [[Cell(f"{panel.env}: {plot.metric}")]]
    for number, cells in enumerate(canvas.rows()):
        mark = {0: marks[0], height // 2: marks[1], height - 1: marks[2]}.get(number, "")
        rows.append([Cell(f"{mark:>{margin}}{'┤' if mark and braille else '│' if braille else '|'}"), *cells])
    rule = "─" if braille else "-"
    rows.append([Cell(" " * margin + ("└" if braille else "+") + rule * columns)])
    first, last = compact(float(f"{left:.3g}")), compact(float(f"{right:.3g}"))
    title = plot.axis if plot.axis != "time" else "seconds"
    middle = max(1, columns - len(first) - len(last))
    rows.append([Cell(" " * (margin + 1) + first + f"{title:^{middle}}" + last)])
    several = len(panel.lines) > 1
    for line in panel.lines:
        runs = f", {line.band.runs} runs" if line.band.runs > 1 else ""
        said = f"{line.name}: ends at {_short(float(line.band.middle[-1]))}{runs}"
        rows.append(
            [Cell(" " * (margin + 1)), *([Cell(f"{_letter(line)} ", line.index)] if several else []), Cell(said)]
        )
    return rows


class _Canvas:
    """Dots, four times as many rows and twice as many columns as characters, and letters in front of them."""

    def __init__(
        self, columns: int, height: int, x: tuple[float, float], y: tuple[float, float], braille: bool
    ) -> None:
        self.columns, self.height, self.braille = columns, height, braille
        self.left, self.width, self.low, self.tall = x[0], (x[1] - x[0]) or 1.0, y[0], y[1] - y[0]
        self.dots = np.zeros((height, columns), np.int64)
        self.owner = np.full((height, columns), -1)
        self.letters: dict[tuple[int, int], tuple[str, int]] = {}

    def trace(self, line: Line) -> None:
        """Every column of dots that the curve covers, connected from top to bottom."""
        band = line.band
        begin, end = self._across(band.x[0]), self._across(band.x[-1])
        places = np.arange(begin, end + 1)
        x = self.left + places / max(1, 2 * self.columns - 1) * self.width
        heights = self._down(np.interp(x, band.x, band.middle))
        before = heights[0]
        for place, here in zip(places, heights, strict=True):
            top, bottom = sorted((here, before + np.sign(here - before)))
            for dot in range(top, bottom + 1):
                self._set(int(place), int(dot), line.index)
            before = here
        marks = (len(places) - 1, len(places) // 3, 2 * len(places) // 3) if self.braille else range(0, len(places), 2)
        for mark in marks:
            cell = (int(heights[mark]) // 4, int(places[mark]) // 2)
            self.letters.setdefault(cell, (_letter(line), line.index))

    def _across(self, x: float) -> int:
        return round((x - self.left) / self.width * (2 * self.columns - 1))

    def _down(self, y: Array) -> NDArray[np.int64]:
        most = 4 * self.height - 1  # numbers near the largest overflow on the way
        return np.clip(np.nan_to_num(np.round((1.0 - (y - self.low) / self.tall) * most)), 0, most).astype(np.int64)

    def _set(self, across: int, down: int, index: int) -> None:
        row, column = down // 4, across // 2
        self.dots[row, column] |= DOTS[down % 4][across % 2]
        self.owner[row, column] = index

    def rows(self) -> list[list[Cell]]:
        several = len({index for _, index in self.letters.values()}) > 1
        found = []
        for row in range(self.height):
            cells = []
            for column in range(self.columns):
                letter = self.letters.get((row, column)) if several or not self.braille else None
                dots = int(self.dots[row, column])
                if letter is not None:
                    cells.append(Cell(*letter))
                elif dots and self.braille:
                    cells.append(Cell(chr(0x2800 + dots), int(self.owner[row, column])))
                else:
                    cells.append(Cell(" "))
            found.append(cells)
        return found


def _letter(line: Line) -> str:
    return LETTERS[line.index % len(LETTERS)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"
