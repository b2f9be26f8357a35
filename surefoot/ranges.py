"""Which values of a setting are worth trying: what `surefoot tune` searches. Declared beside the setting."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`. `log`: orders of magnitude are equally likely, not the numbers themselves."""

    low: float
    high: float
    log: bool = False

    def including(self, value: object) -> Between:
        """The same range, widened as far as needed to contain a number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (self.log and value <= 0):
            return self
        return Between(min(self.low, value), max(self.high, value), self.log)

    def rounded(self, number: float) -> float:
        """The number with three significant digits, within the range."""
        return min(max(float(f"{number:.3g}"), self.low), self.high)

    @property
    def decades(self) -> float:
        return log10(self.high / self.low) if self.low > 0 else 0.0


@dataclass(frozen=True)
class Among:
    """One of these values. If all are numbers, they are in order, and neighbours are taken to be alike."""

    values: tuple[object, ...]

    def including(self, value: object) -> Among:
        """The same values and this one."""
        if value in self.values:
            return self
        found = (*self.values, value)
        return Among(tuple(sorted(found, key=_number)) if Among(found).ordered else found)

    @property
    def ordered(self) -> bool:
        return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in self.values)


Range = Between | Among


def between(low: float, high: float, *, log: bool = False) -> Between:
    return Between(low, high, log)


def among(*values: object) -> Among:
    return Among(values)


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return value
