"""All checks, and the report of running them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from surefoot.conformance import estimates, updates, values
from surefoot.conformance.adapter import Adapter
from surefoot.conformance.finding import Check, Finding

CHECKS = {check.name: check for check in (*values.CHECKS, *estimates.CHECKS, *updates.CHECKS)}


@dataclass(frozen=True)
class Report:
    adapter: str
    findings: list[Finding]
    versions: dict[str, str]
    notes: dict[str, str]  # check -> how the library was used

    @property
    def ok(self) -> bool:
        return all(finding.result != "failed" for finding in self.findings)

    def as_dict(self) -> dict[str, object]:
        count = Counter(finding.result for finding in self.findings)
        return {
            **asdict(self),
            "passed": count["passed"],
            "failed": count["failed"],
            "not_checked": count["not checked"],
        }


def examine(
    file: Path,
    python: str,
    checks: Sequence[Check],
    *,
    timeout: float,
    show: Callable[[Check], None] = lambda check: None,
) -> Report:
    """Run the checks on the adapter in `file`. `show` is told of each check before it begins."""
    findings = []
    with Adapter(file, python, timeout) as adapter:
        for check in checks:
            show(check)
            findings.append(check.carry_out(adapter))
        return Report(file.name, findings, adapter.about["versions"], adapter.about["notes"])
