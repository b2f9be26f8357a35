"""Measures where the time goes: seconds per phase, on the monotonic clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class PhaseTimer:
    """Adds up seconds per named phase (env, act, learn, log)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def shares(self) -> dict[str, float]:
        """Each phase's fraction of the time measured so far."""
        total = sum(self.seconds.values()) or 1.0
        return {name: seconds / total for name, seconds in self.seconds.items()}


class Deadline:
    """A wall-clock deadline: `near` once there is no room for two more turns as long as the longest so far."""

    def __init__(self, seconds: float | None = None) -> None:
        self._turn_start = perf_counter()
        self.end = None if seconds is None else self._turn_start + seconds
        self.longest = 0.0

    def turn(self) -> None:
        """One turn of the loop is over."""
        now = perf_counter()
        self.longest, self._turn_start = max(self.longest, now - self._turn_start), now

    def expect(self, seconds: float) -> None:
        """Reserve this much time for something else to do before the end."""
        self.longest = max(self.longest, seconds)

    @property
    def near(self) -> bool:
        return self.end is not None and perf_counter() + 2.0 * self.longest > self.end
