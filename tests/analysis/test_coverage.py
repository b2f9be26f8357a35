"""The intervals hold the truth as often as the docs say."""

import importlib.util
import json
from pathlib import Path

import numpy as np

from surefoot.analysis import intervals as iv
from surefoot.analysis.statistics import mean

ROOT = Path(__file__).parent.parent.parent
FOUND = json.loads((ROOT / "benchmarks" / "results" / "coverage.json").read_text(encoding="utf-8"))
NUMBERS = {"mean": "mean", "iqm": "IQM", "improvement": "P"}


def lines():
    """The table of docs/compare.md, from the results."""
    for kind in ("normal", "skewed", "two modes"):
        for tasks in (1, 5):
            rows = [row for row in FOUND["intervals"] if (row["scores"], row["tasks"]) == (kind, tasks)]
            for name, title in NUMBERS.items():
                end = "_different" if name == "improvement" else ""
                cells = [f"{row[f'{name}_shown{end}']:.0%} ({row[f'{name}_percentile{end}']:.0%})" for row in rows]
                yield f"| {kind} | {tasks} | {title} | {' | '.join(cells)} |".replace("%", " %")


def test_the_table_in_the_docs_is_the_measured_one():
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    assert "\n".join(lines()) in text
    worst = max(row["settled_equal"] for row in FOUND["intervals"])
    assert f"called different in at most {worst:.1%}".replace("%", " %") in text


def test_what_was_measured_is_good_enough():
    for row in FOUND["intervals"]:
        assert row["settled_equal"] < 0.06
        assert row["improvement_shown_different"] > 0.93
        if row["scores"] == "normal":
            assert 0.93 < row["mean_shown"] < 0.97
            assert 0.93 < row["iqm_shown"] < 0.975
        if row["seeds"] >= 10:
            assert row["mean_shown"] > 0.9
            assert row["iqm_shown"] > 0.925
    assert all(plan["settled"] > 0.7 for plan in FOUND["plans"])


def test_three_seeds_of_a_normal_score():
    rng = np.random.default_rng(0)
    held = np.zeros(2)
    for _ in range(400):
        scores = [rng.normal(size=3)]
        low, high = iv.percentile_interval(iv.bootstrap(scores, mean, iv.resample(scores, rng, 200)))
        shown = iv.interval(scores, mean, resamples=200)
        held += low <= 0.0 <= high, shown.low <= 0.0 <= shown.high
    assert 0.68 < held[0] / 400 < 0.82  # rliable's
    assert 0.91 < held[1] / 400 < 0.98


def test_the_script_that_measured_it_still_runs():
    """Loaded by its path: there is a well-known package of the same name."""
    spec = importlib.util.spec_from_file_location("interval_coverage", ROOT / "benchmarks" / "coverage.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.one_method("two modes", tasks=2, seeds=3, experiments=5)
    assert set(found) == {"mean_shown", "mean_percentile", "iqm_shown", "iqm_percentile"}
    pair = script.two_methods("skewed", tasks=1, seeds=3, shift=0.0, experiments=5)
    assert pair["truth"] == 0.5
    assert pair["settled"] == 0.0
