"""A comparison as one HTML file that can be mailed: inline style, static SVG, no script, everything escaped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING

from surefoot import __version__
from surefoot.analysis.comparison import Comparison, ComparisonTable
from surefoot.analysis.comparison_pictures import table_figure
from surefoot.analysis.pictures import curves_figure
from surefoot.analysis.wording import columns, number, title, verdicts
from surefoot.drawing import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 74rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
.about { color: #666; margin-top: .2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
.wide { overflow-x: auto; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #222; } tbody tr:first-child td { font-weight: 600; }
svg { max-width: 100%; height: auto; } li { margin: .2rem 0; } .notes { color: #7a4a00; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 1.2rem; }
"""
WORDS = {
    "IQM": "Interquartile mean: the mean of the middle half of the runs. A lucky or failed run hardly moves it.",
    "median": "On one env: half of the runs are below it. Over several: the median over envs of their means.",
    "gap": "Optimality gap: by how much the runs fall short of the upper reference on average (0: not "
    "at all; 1: they are at the lower reference).",
    "[95 %]": "How far the number could move with other seeds: a stratified bootstrap, widened for few seeds.",
    "P(… better)": "How often a run of the best method beats a run of this one on the same env. The difference is "
    "settled if the interval excludes one half. The best was chosen by the same numbers, and with many methods "
    "some difference looks settled by chance.",
    "steps to": "Steps until half of the runs have reached the threshold in training, where a policy explores: it may "
    "score less than in the greedy evaluation at the end.",
    "performance profile": "The share of runs with more than each score. A curve that is higher everywhere is better.",
}


def report(comparison: Comparison) -> str:
    """The whole file."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    names = [found.name for found in comparison.tables[0].summaries]
    heading = f"Comparison of {', '.join(names)}" if len(names) <= 4 else f"Comparison of {len(names)} methods"
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(heading)}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{escape(heading)}</h1>"
    yield f'<p class="about">Score: {escape(comparison.scoring.described)}. surefoot {__version__}, {escape(made)}.</p>'
    with look():
        for table in comparison.tables:
            yield from _section(table)
        yield f"<h2>Learning curves</h2>\n{_svg(curves_figure(comparison.curves), 'learning curves')}"
        if comparison.together is not None:
            all_envs = replace(comparison.curves, panels=(comparison.together,))
            yield "<h2>Learning curves over all envs</h2>"
            yield f'<p class="about">{escape(comparison.together.about)}</p>'
            yield _svg(curves_figure(all_envs), "curves over all envs")
    if comparison.notes:
        yield from ('<h2>Notes</h2>\n<ul class="notes">', *_items(comparison.notes), "</ul>")
    yield "<h2>Glossary</h2>\n<dl>"
    for word, meaning in WORDS.items():
        yield f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>"
    yield "</dl>\n<h2>References</h2>\n<p>Normalised scores are 0 and 1 at:</p>\n<ul>"
    yield from _items(f"{env}: {number(low)} and {number(high)}" for env, (low, high) in comparison.references.items())
    yield "</ul>\n</body>\n</html>\n"


def _section(table: ComparisonTable) -> Iterator[str]:
    names, rows = columns(table)
    yield f"<h2>{escape(title(table)[0].upper() + title(table)[1:])}</h2>"
    yield '<div class="wide"><table>\n<thead><tr>'
    yield "".join(f"<th>{escape(name)}</th>" for name in names)
    yield "</tr></thead>\n<tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"
    if said := list(verdicts(table)):
        yield from ("<ul>", *_items(said), "</ul>")
    yield _svg(table_figure(table), f"scores: {title(table)}")


def _items(texts: Iterator[str] | tuple[str, ...] | list[str]) -> Iterator[str]:
    return (f"<li>{escape(text)}</li>" for text in texts)


def _svg(figure: Figure, label: str) -> str:
    """The drawing alone, without the XML declaration; letters are drawn as outlines."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    drawing = out.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    return drawing.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
