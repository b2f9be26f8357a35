"""Fits printed text to the terminal: lines break between words or cells, never inside a number."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

NARROWEST, USUAL = 20, 80  # columns
VALUE = 40  # columns that a value beside its name needs at least


def width_of(stream: TextIO | None) -> int | None:
    """Columns of the stream's terminal; None for a pipe or a file, whose lines are not broken."""
    if stream is None or stream.closed or not stream.isatty():
        return None
    said = os.environ.get("COLUMNS", "")
    try:
        columns = int(said) if said.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # a terminal that does not know its size
        columns = 0
    return max(columns, NARROWEST) if columns else USUAL


def can_redraw(stream: TextIO) -> bool:
    """Whether lines that were written can be written over: not in a pipe, a recording (CI) or a dumb terminal.

    NO_COLOR and FORCE_COLOR say nothing about redrawing.
    """
    recorded = os.environ.get("CI", "").lower() not in ("", "0", "false")
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return not recorded and not dumb and bool(stream.isatty())


def clock(seconds: float) -> str:
    """`1:05` or `2:03:04`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def fit(text: str, stream: TextIO | None = None) -> str:
    """Break the lines that are too long for the stream's terminal (by default stdout's). Not for commands to copy."""
    width = width_of(sys.stdout if stream is None else stream)
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in wrap(line, width))


def wrap(line: str, width: int) -> list[str]:
    """Break a line into lines of at most `width` columns, with a hanging indent. Longer words stay whole.

    Where a value stands beside its name, in a column of its own, it goes on in that column if there is room for it.
    """
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    named = re.match(r" *\S+(?: \S+)* {2,}", line)
    column = named.end() if named is not None and width - named.end() >= VALUE else len(indent) + 4
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * column,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def pack(lengths: Sequence[int], width: int, gap: int) -> list[list[int]]:
    """Distribute cells of these lengths over lines of at most `width` columns; returns the indices per line."""
    lines: list[list[int]] = [[]]
    used = 0
    for index, length in enumerate(lengths):
        if lines[-1] and used + gap + length > width:
            lines.append([])
        used = length if not lines[-1] else used + gap + length
        lines[-1].append(index)
    return lines


def join(cells: Sequence[str], stream: TextIO | None, gap: str = "  ", indent: str = "    ") -> str:
    """Cells side by side; those that do not fit the stream's terminal go to the next line."""
    width = width_of(stream)
    if width is None:
        return gap.join(cells)
    lines = pack([len(cell) for cell in cells], width - len(indent), len(gap))
    return f"\n{indent}".join(gap.join(cells[i] for i in line) for line in lines)


def table_fits(names: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None) -> bool:
    """Whether the stream's terminal is wide enough for the table."""
    width = width_of(sys.stdout if stream is None else stream)
    widths = _widths(names, rows)
    return width is None or sum(widths) + 2 * (len(widths) - 1) <= width


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(name), *(len(row[i]) for row in rows)) for i, name in enumerate(names)]


def table(names: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None) -> Iterator[str]:
    """The lines of a table or, if the terminal is too narrow for it, a paragraph per row."""
    width = width_of(sys.stdout if stream is None else stream)
    if width is not None and not table_fits(names, rows, stream):
        yield from paragraphs(names, rows, width)
        return
    widths = _widths(names, rows)
    for row in (names, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def paragraphs(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Each row as a paragraph: its first cell, then the others with their names."""
    for first, *others in rows:
        yield from wrap(first, width)
        cells = [f"{name} {cell}" for name, cell in zip(names[1:], others, strict=True)]
        for line in pack([len(cell) for cell in cells], width - 2, 3):
            yield from wrap("  " + "   ".join(cells[i] for i in line), width)
