"""Counts of a server, in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from time import monotonic

BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)  # seconds


class Metrics:
    def __init__(self) -> None:
        self._start = monotonic()
        self._status: Counter[int] = Counter()
        self._took = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self.observations = 0  # that were answered

    def count(self, status: int, seconds: float) -> None:
        self._status[status] += 1
        self._seconds += seconds
        self._took[bisect_left(BOUNDS, seconds)] += 1

    def text(self, passes: int) -> str:
        """`passes`: how often the policy was executed."""
        total = sum(self._took)
        lines = ["# TYPE surefoot_requests_total counter"]
        lines += [f'surefoot_requests_total{{status="{code}"}} {self._status[code]}' for code in sorted(self._status)]
        lines += ["# TYPE surefoot_observations_total counter", f"surefoot_observations_total {self.observations}"]
        lines += ["# TYPE surefoot_passes_total counter", f"surefoot_passes_total {passes}"]
        lines.append("# TYPE surefoot_request_seconds histogram")
        below = zip((*BOUNDS, "+Inf"), accumulate(self._took), strict=True)
        lines += [f'surefoot_request_seconds_bucket{{le="{bound}"}} {number}' for bound, number in below]
        lines += [f"surefoot_request_seconds_sum {self._seconds:.6f}", f"surefoot_request_seconds_count {total}"]
        lines += ["# TYPE surefoot_uptime_seconds gauge", f"surefoot_uptime_seconds {monotonic() - self._start:.1f}"]
        return "\n".join(lines) + "\n"
