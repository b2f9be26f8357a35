"""What counts as better on fresh seeds."""

import numpy as np
import pytest

from surefoot.analysis.intervals import Estimate, interval
from surefoot.analysis.statistics import iqm
from surefoot.tuning.validate import Checked
from surefoot.tuning.wording import verdict
from tests.tuning.pretending import a_wish


class Task:
    """As much of a task as the verdict names."""

    wish = a_wish()
    fresh_seeds = range(5)


def checked(failed="", **estimates):
    found = {name.replace("_", " "): Estimate(*numbers) for name, numbers in estimates.items()}
    return Checked({name: [one.value] * 5 for name, one in found.items()}, found, failed)


def test_better_needs_intervals_that_do_not_overlap():
    assert checked(tuned=(10, 8, 12), default=(5, 3, 7.9)).better
    assert not checked(tuned=(10, 8, 12), default=(5, 3, 8)).better
    assert not checked(tuned=(1, 0, 2), default=(5, 3, 8)).better
    assert checked(tuned=(1, 0, 2), default=(5, 3, 8)).worse
    nan = float("nan")
    assert not checked(tuned=(10, nan, nan), default=(5, 3, 8)).better
    assert not checked("seed 3: it broke", tuned=(10, 8, 12), default=(5, 3, 7)).better


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "no improvement found: no trial did better than the default"),
        (checked(tuned=(10, 4, 16), default=(5, 3, 7)), "cannot be told from the default (10.0 instead of 5.00)"),
        (checked(tuned=(1, 0, 2), default=(5, 3, 7)), "are worse than the default"),
        (checked("seed 3: it broke", default=(5, 3, 7)), "failed on fresh seeds (seed 3: it broke)"),
        (
            checked(tuned=(10, 8, 12), default=(5, 3, 7)),
            "better than the default: 10.0 instead of 5.00 on 5 fresh",
        ),
        (
            checked(tuned=(10, 8, 12), default=(5, 3, 7), preset_a=(11, 9, 13)),
            "not distinguishable from the preset a (11.0): rather use that one",
        ),
        (
            checked(tuned=(10, 8, 12), default=(5, 3, 7), preset_a=(20, 19, 21)),
            "worse than the preset a (20.0): rather use that one",
        ),
    ],
)
def test_the_verdict_in_words(found, says):
    said = verdict(found, Task())
    assert says in said
    assert said.startswith("better") == bool(found and found.better)


@pytest.mark.parametrize("shape", ["normal", "bimodal", "skewed"])
def test_two_equal_methods_are_hardly_ever_told_apart(shape):
    """In 1,000 experiments: 2, 0 and 3 times."""
    rng = np.random.default_rng(0)
    draw = {
        "normal": lambda: rng.normal(0.0, 1.0, 5),
        "bimodal": lambda: np.where(rng.random(5) < 0.3, -100.0, 200.0) + rng.normal(0.0, 10.0, 5),
        "skewed": lambda: -rng.lognormal(0.0, 1.0, 5),
    }[shape]
    claims = 0
    for _ in range(60):
        found = {name: interval([draw()], iqm, resamples=500) for name in ("tuned", "default")}
        claims += Checked({}, found).better
    assert claims <= 2
