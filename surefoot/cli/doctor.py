"""`surefoot doctor [ENV]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from surefoot.cli.flags import Parser, add_json, add_settings
from surefoot.envs.config import EnvConfig
from surefoot.errors import UsageError
from surefoot.settings import coerce, options
from surefoot.text import counted, print
from surefoot.training.config.presets import automatic_preset
from surefoot.training.config.run_config import DEFAULT_ALGO
from surefoot.training.reports.screen import fit

if TYPE_CHECKING:
    from surefoot.doctor import Report
    from surefoot.doctor.report import Numbers

MARKS = {"error": "✗", "warning": "!", "note": "·"}
DESCRIPTION = """Check an environment before training on it: reports problems, statistics and suitable flags.

Without an environment, check the installation: kernels, PyTorch, threads, extras.

examples:
  surefoot doctor
  surefoot doctor CartPole-v1
  surefoot doctor my/env.py:MyEnv --env-kwargs '{"size": 5}'

The exit code is 1 if there are errors; warnings do not count.
"""


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot doctor", description=DESCRIPTION)
    parser.add_argument("env", metavar="ENV", nargs="?", help="registered id, module:Id, or path/to/file.py:Factory")
    parser.add_argument("--episodes", default="20", metavar="N", help="random episodes to play, for at most 10 s [20]")
    add_json(parser)
    names = ("env_kwargs", "wrappers", "max_episode_steps")
    add_settings(parser, [option for option in options(EnvConfig) if option.name in names])
    arguments = vars(parser.parse_args(words))
    if arguments["env"] is None:
        return _examine_installation(words)
    episodes, as_json = coerce("episodes", arguments.pop("episodes"), int), arguments.pop("json")
    if episodes < 1:
        raise UsageError("--episodes must be at least 1")
    config = EnvConfig(**arguments)
    from surefoot.doctor import examine

    report = examine(config, episodes=episodes)
    preset = automatic_preset(config.env, DEFAULT_ALGO)
    if preset is not None:  # the preset already has suitable settings
        report.flags = []
    out = sys.stderr if as_json else sys.stdout
    *lines, command = describe(report, preset)
    print(fit("\n".join(lines), out), command, sep="\n", file=out)  # keep a command to copy on one line
    if as_json:
        print(json.dumps(report.as_dict() | {"preset": preset}))
    return 0 if report.ok else 1


def _examine_installation(words: Sequence[str]) -> int:
    from surefoot.cli import installation

    if other := [word for word in words if word != "--json"]:
        raise UsageError(f"{other[0]} applies to an environment; give one: surefoot doctor CartPole-v1 {other[0]} …")
    found = installation.examine()
    print("\n".join(installation.describe(found)), file=sys.stderr if "--json" in words else sys.stdout)
    if "--json" in words:
        print(json.dumps(found))
    return 1 if found["errors"] else 0


def describe(report: Report, preset: str | None = None) -> Iterator[str]:
    """The report as lines of text."""
    yield report.described
    for title, leaves in (("observation", report.observation), ("action", report.action)):
        for index, line in enumerate(leaves):
            yield f"  {'' if index else title:<12} {line}"
    yield ""
    for finding in report.findings:
        yield f"{MARKS[finding.level]} {finding.level}: {finding.what}"
        if finding.advice:
            yield f"    → {finding.advice}"
    rows = list(_table(report.numbers))
    if rows:
        yield ""
        yield "under random actions"
        yield from (f"  {name:<22} {value}" for name, value in rows)
    yield ""
    if report.ok:
        why = f"   (with the preset {preset})" if preset else ""
        yield f"recommended: {report.recommended}{why}"
    else:
        count = sum(finding.level == "error" for finding in report.findings)
        yield f"{counted(count, 'error')} to fix first; then: {report.recommended}"


def _table(numbers: Numbers) -> Iterator[tuple[str, str]]:
    for name in ("reward", "return"):
        if name in numbers:
            found = numbers[name]
            share = f", non-zero in {found['nonzero']:.1%} of steps" if "nonzero" in found else ""
            spread = f"{found['mean']:.4g} ± {found['std']:.4g}, {found['min']:.4g} to {found['max']:.4g}"
            yield ("reward per step" if name == "reward" else "return per episode"), spread + share
    if "length" in numbers:
        found, ends = numbers["length"], numbers["episodes"]
        yield "episode length", f"{found['min']} to {found['max']}, median {found['median']:g}"
        yield (
            "episodes",
            f"{ends['ended']} ended: {ends['terminated']} terminated, {ends['truncated']} truncated",
        )
    for path, found in numbers.get("observation", {}).items():
        name = f"observation {path}".rstrip()
        yield name, f"{found['min']:.4g} to {found['max']:.4g}, mean std {found['std']:.3g}"
    if "workers" in numbers:
        yield "workers", f"{numbers['workers']['number']} ({numbers['workers']['why']})"
    if "steps_per_second" in numbers:
        yield "steps/s, one env", f"{numbers['steps_per_second']['alone']:,.0f}"
        for count, speed in numbers["steps_per_second_together"].items():
            yield f"steps/s, {count} in turn", f"{speed:,.0f} (1M steps: {1e6 / speed:,.0f} s of env time)"
