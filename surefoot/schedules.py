"""Settings that change during a run: one mechanism for all of them.

    --learning-rate linear:3e-4:0            from 3e-4 to 0, in a straight line (`linear:3e-4` is the same)
    --entropy-coef cosine:0.01:0.001         along half a cosine: slowly, fast, slowly
    --clip-ratio points:0=0.2,0.5=0.2,1=0.1  straight lines between the values at these fractions of the run

In Python also a function of the fraction done: `learning_rate=lambda done: 3e-4 * 0.5**done`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from surefoot.errors import UsageError

KNOTS = 200  # a user's function is stored as this many straight pieces


class Schedule(float):
    """A number that depends on the progress of the run. Used as a plain float, it is its largest value."""

    points: tuple[tuple[float, float], ...]  # (fraction done, value), from 0 to 1
    text: str  # the form that is typed and saved
    smooth: bool  # a cosine between the points instead of straight lines

    def __new__(cls, points: Sequence[tuple[float, float]], text: str, *, smooth: bool = False) -> Schedule:
        made = super().__new__(cls, max((value for _, value in points), key=abs))
        made.points, made.text, made.smooth = tuple(points), text, smooth
        return made

    def factor(self, remaining: float) -> float:
        """Its value relative to its largest one, when this fraction of the run is still ahead."""
        if not self:
            return 1.0
        for (start, before), (end, after) in pairwise(self.points):
            if 1.0 - remaining <= end or end == 1.0:
                left = (end - (1.0 - remaining)) / (end - start) if (start, end) != (0.0, 1.0) else remaining
                if self.smooth:
                    left = 0.5 * (1.0 + math.cos(math.pi * (1.0 - left)))
                return before / self * left + after / self * (1.0 - left)
        return 1.0  # unreachable: the last point is at 1

    def at(self, remaining: float) -> float:
        """Its value when this fraction of the run is still ahead."""
        return float(self) * self.factor(remaining)

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __format__(self, how: str) -> str:
        return self.text

    def __reduce__(self) -> tuple[Callable[[str], Schedule], tuple[str]]:
        return parse_schedule, (self.text,)


def parse_schedule(text: str) -> Schedule:
    """Parse `linear:A:B`, `cosine:A:B` or `points:0=A,0.5=B,1=C`; ValueError for anything else."""
    kind, _, rest = text.partition(":")
    if kind in ("linear", "cosine"):
        first, _, last = rest.partition(":")
        ends = [(0.0, float(first)), (1.0, float(last or 0.0))]
        return Schedule(ends, f"{kind}:{ends[0][1]!r}:{ends[1][1]!r}", smooth=kind == "cosine")
    if kind != "points":
        raise ValueError(f"{kind} is not a schedule")
    pairs = [pair.partition("=") for pair in rest.split(",")]
    return _through([(float(share), float(value)) for share, _, value in pairs])


def from_function(function: Callable[[float], float]) -> Schedule:
    """Straight lines between the function's values at many points, which can be saved."""
    return _through([(at / KNOTS, float(function(at / KNOTS))) for at in range(KNOTS + 1)])


def _through(points: list[tuple[float, float]]) -> Schedule:
    shares = [share for share, _ in points]
    if len(points) < 2 or shares[0] != 0.0 or shares[-1] != 1.0 or any(a >= b for a, b in pairwise(shares)):
        raise ValueError("points must go from 0 to 1 and rise")
    return Schedule(points, "points:" + ",".join(f"{share!r}={value!r}" for share, value in points))


def as_schedule(name: str, value: object) -> Schedule | None:
    """The schedule given instead of a number; None if it is something else."""
    if isinstance(value, Schedule):
        return value
    try:
        if callable(value):
            return from_function(value)
        if isinstance(value, str) and value.partition(":")[0] in ("linear", "cosine", "points"):
            return parse_schedule(value)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{name}={value!r} is not a schedule ({error}); write it as linear:3e-4:0, cosine:3e-4:0 or "
            "points:0=3e-4,0.5=1e-4,1=0"
        ) from None
    return None
