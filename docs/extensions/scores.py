"""What an algorithm reaches with its tuned presets, as a table with intervals: ```{scores} ppo```.

The numbers are those of benchmarks/results/presets.json, read when the site is built.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from surefoot.analysis.bounds import bounds_of
from surefoot.analysis.intervals import interval
from surefoot.analysis.statistics import mean
from surefoot.training.config.presets import load_preset

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "presets.json"


def table(algo: str) -> list[str]:
    """Markdown, one row for each environment that the algorithm has a preset for."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = ["| environment | mean return | 95 % interval | seeds | steps | random play |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name, runs in results["presets"].items():
        env, _, kind = name.partition("/")
        if kind != algo or env not in results["random"]:
            continue
        scores = np.array([run["mean_return"] for run in runs.values()])
        found = interval([scores], mean, bounds=[bounds_of(None, env, {})])
        steps = load_preset(name)["total_steps"]
        random = results["random"][env]["mean_return"]
        low_to_high = f"{found.low:.1f} to {found.high:.1f}".replace(" ", "\N{NO-BREAK SPACE}")
        lines.append(f"| {env} | {found.value:.1f} | {low_to_high} | {len(scores)} | {steps:,} | {random:.1f} |")
    return lines


class Scores(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(RESULTS))
        node = nodes.container()
        self.state.nested_parse(StringList(table(self.arguments[0])), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("scores", Scores)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
