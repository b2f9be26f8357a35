"""The look of our pictures. Needs matplotlib (extra `plots`), which is imported only when something is drawn.

Colours are Okabe and Ito's, which people with any colour vision tell apart; lines also differ in style and marker.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from surefoot.errors import UsageError
from surefoot.runs.files import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, SKY, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#222222"
FORMATS = (".png", ".svg", ".pdf")


class LineLook(NamedTuple):
    """A line that is told from the others in colour, in grey and in dashes."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str


LINES = (
    LineLook(BLUE, "-", "o"),
    LineLook(ORANGE, (0, (5.0, 1.6)), "s"),
    LineLook(GREEN, (0, (5.0, 1.4, 1.2, 1.4)), "^"),
    LineLook(PINK, (0, (1.4, 1.2)), "D"),
    LineLook(BLACK, (0, (8.0, 2.0)), "v"),
    LineLook("#B07D00", (0, (4.0, 1.2, 1.2, 1.2, 1.2, 1.2)), "P"),
    LineLook("#3E8FC4", (0, (2.5, 1.2)), "X"),
    LineLook("#777777", (0, (6.0, 1.2, 2.5, 1.2)), "*"),
)


def line_look(index: int) -> LineLook:
    """The look of the line with this number; after eight, colours and dashes pair up in another way."""
    if index < len(LINES):
        return LINES[index]
    other = LINES[(index + index // len(LINES)) % len(LINES)]
    return LineLook(LINES[index % len(LINES)].colour, other.line, other.marker)


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def missing_for_page() -> list[str]:
    """The packages of the extra `ui` that are not installed."""
    return [name for name in ("starlette", "uvicorn", "plotly") if find_spec(name) is None]


def check_picture(flag: str, wanted: str, otherwise: str = "") -> Path:
    """The file that a flag names, if a picture can be written to it."""
    path = Path(wanted)
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"{flag} {wanted}: give a file that ends in .png, .svg or .pdf{otherwise and f', {otherwise}'}"
        )
    if path.is_dir():
        raise UsageError(f"{flag} {wanted} is a directory; give a file in it")
    if not can_draw():
        raise UsageError(f'{flag} {wanted} needs matplotlib: pip install "surefoot[plots]"')
    return path


def look() -> AbstractContextManager[None]:
    """While it is open, everything is drawn in our look."""
    import matplotlib as mpl

    return mpl.rc_context(
        {
            "font.size": 10,
            "axes.titlesize": 10.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "lines.linewidth": 2.0,
            "svg.hashsalt": "surefoot",
            "text.parse_math": False,  # a name may have dollar signs in it
        }
    )


def new_figure(width: float, height: float) -> Figure:
    """In inches. No pyplot: nothing global, no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, out: Path) -> None:
    """Write the picture as a whole, or leave what was there."""
    _plain_logarithms(figure)
    drawn = BytesIO()
    figure.savefig(drawn, format=out.suffix[1:].lower(), dpi=130)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_output(out, drawn.getvalue())
    except OSError as error:
        raise UsageError(f"the picture cannot be written to {out}: {error.strerror or error}") from None


def _plain_logarithms(figure: Figure) -> None:
    """Powers of ten as plain numbers: matplotlib writes them in TeX, which our look does not read."""
    from matplotlib.ticker import LogFormatter, LogFormatterMathtext

    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
