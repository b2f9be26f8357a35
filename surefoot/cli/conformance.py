"""`surefoot conformance [ADAPTER.py]`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.cli.flags import Parser, add_json
from surefoot.errors import UsageError, did_you_mean
from surefoot.settings import coerce
from surefoot.text import print
from surefoot.training.reports.screen import fit, table

if TYPE_CHECKING:
    from surefoot.conformance.finding import Check
    from surefoot.conformance.suite import Report

DESCRIPTION = """Check a policy-gradient library or script against numbers in closed form: V at episode ends, GAE, the
direction of the KL, the first ratio, resume. A failed check names the mistake.

An adapter is a Python file with some of the functions values, vector_values, advantages, kl, first_ratio and resume.
Checks of the others are reported as not checked. Without an adapter, check this installation of surefoot.

examples:
  surefoot conformance
  surefoot conformance my_ppo.py --only gae gae-truncated
  surefoot conformance adapter.py --python ../other/.venv/bin/python

The adapter's code is executed. The exit code is 1 if a check failed.
"""


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot conformance", description=DESCRIPTION)
    parser.add_argument("adapter", metavar="ADAPTER.py", nargs="?", help="the adapter [surefoot's own]")
    parser.add_argument("--python", metavar="FILE", help="Python to run the adapter with [this one]")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="run only these checks")
    parser.add_argument("--timeout", default="300", metavar="SECONDS", help="time for each answer of the adapter [300]")
    add_json(parser)
    arguments = parser.parse_args(words)
    timeout = coerce("timeout", arguments.timeout, float)
    if not 0.0 < timeout < float("inf"):
        raise UsageError(f"timeout={arguments.timeout} must be a positive number of seconds")
    file, python = _adapter(arguments.adapter), _python(arguments.python)

    from surefoot.conformance.suite import CHECKS, examine

    for name in arguments.only or ():
        if name not in CHECKS:
            raise UsageError(f"unknown check '{name}'{did_you_mean(name, CHECKS)} (one of {', '.join(CHECKS)})")
    checks = [check for name, check in CHECKS.items() if not arguments.only or name in arguments.only]

    def show(check: Check) -> None:
        if sys.stderr.isatty():
            print(f"{check.name}: {check.line} …", file=sys.stderr)

    report = examine(file, python, checks, timeout=timeout, show=show)
    out = sys.stderr if arguments.json else sys.stdout
    for line in describe(report):
        print(fit(line, out), file=out)
    if arguments.json:
        print(json.dumps(report.as_dict()))
    return 0 if report.ok else 1


def _adapter(given: str | None) -> Path:
    from surefoot.conformance.adapter import OWN

    if given is None:
        return OWN
    if not os.path.isfile(given):
        raise UsageError(f"the adapter {given} does not exist (looked in {Path.cwd()})")
    return Path(given).resolve()


def _python(given: str | None) -> str:
    found = sys.executable if given is None else shutil.which(given)
    if found is None:
        raise UsageError(f"--python {given} is not a program that can be started")
    return os.path.abspath(found)


def describe(report: Report) -> Iterator[str]:
    """The report as lines of text."""
    yield f"{report.adapter}: " + ", ".join(f"{name} {number}" for name, number in report.versions.items())
    yield ""
    rows = [(own.check, own.result, own.expected, own.found) for own in report.findings]
    yield from table(("check", "result", "expected", "found"), rows)
    for result, mark in (("failed", "✗"), ("not checked", "·")):
        for own in report.findings:
            if own.result == result:
                yield ""
                yield f"{mark} {own.check}: {own.means}"
    yield ""
    numbers = report.as_dict()
    yield f"{numbers['passed']} passed, {numbers['failed']} failed, {numbers['not_checked']} not checked"
