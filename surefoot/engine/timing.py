"""Measures where the time goes: seconds per phase, on the monotonic clock."""

from __future__ import annotations

from time import perf_counter


class PhaseTimer:
    """Adds up seconds per named phase (env, act, learn, log)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def phase(self, name: str) -> Phase:
        """A context whose time counts for this phase."""
        return Phase(self, name)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def shares(self) -> dict[str, float]:
        """Each phase's fraction of the time measured so far."""
        total = sum(self.seconds.values()) or 1.0
        return {name: seconds / total for name, seconds in self.seconds.items()}


class Phase:
    """A class, because every update has a few: a generator would take four times as long."""

    def __init__(self, timer: PhaseTimer, name: str) -> None:
        self._timer, self._name = timer, name

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._timer.add(self._name, perf_counter() - self._start)


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
