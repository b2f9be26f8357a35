"""Runs `surefoot conformance` on surefoot and on other libraries, with the adapters in benchmarks/conformance/.

    sh benchmarks/make_peers.sh PEERS
    python benchmarks/conformance.py --peers PEERS [--jobs 2] [--out FILE.json]
    python benchmarks/report.py

A library whose environment is not in PEERS is left out. Each adapter says how it uses its library.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import machine

from surefoot.conformance.adapter import OWN
from surefoot.conformance.suite import CHECKS, examine

ADAPTERS = Path(__file__).parent / "conformance"
LIBRARIES = {  # name -> (package, adapter, folder in PEERS)
    "surefoot": ("surefoot", OWN, None),
    "Stable-Baselines3": ("stable-baselines3", ADAPTERS / "stable_baselines3.py", "sb3"),
    "Tianshou": ("tianshou", ADAPTERS / "tianshou_ppo.py", "tianshou"),
    "skrl": ("skrl", ADAPTERS / "skrl_ppo.py", "skrl"),
    "rsl-rl-lib": ("rsl-rl-lib", ADAPTERS / "rsl_rl_ppo.py", "rsl"),
}
MARKS = {"passed": "✓", "failed": "✗", "not checked": "–"}


def python_of(folder: str | None, peers: Path | None) -> str | None:
    """The Python that a library is installed for; None if there is none."""
    if folder is None:
        return sys.executable
    file = None if peers is None else peers / folder / "bin" / "python"
    return str(file.absolute()) if file is not None and file.exists() else None


def measure(name: str, python: str, timeout: float) -> dict[str, Any]:
    package, adapter, folder = LIBRARIES[name]
    report = examine(adapter, python, list(CHECKS.values()), timeout=timeout).as_dict()
    own = f" benchmarks/conformance/{adapter.name} --python PEERS/{folder}/bin/python" if folder else ""
    print(f"{name}: {report['passed']} passed, {report['failed']} failed, {report['not_checked']} not checked")
    return {**report, "package": package, "command": f"surefoot conformance{own}"}


def table(libraries: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each check, then what failed and how each library was used."""
    titles = [f"{name} {own['versions'].get(own['package'], '')}".strip() for name, own in libraries.items()]
    lines = machine.head("check", *titles)
    found = [{finding["check"]: finding for finding in own["findings"]} for own in libraries.values()]
    for name in CHECKS:
        lines.append(machine.row(f"`{name}`", *(MARKS[one[name]["result"]] for one in found)))
    for name, own in libraries.items():
        lines += ["", f"**{name}**: `{own['command']}`", ""]
        for finding in own["findings"]:
            if finding["result"] == "failed":
                lines.append(f"- `{finding['check']}` ✗ {finding['means']}")
        lines += [f"- `{check}`: {note}" for check, note in own["notes"].items()]
    return lines


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, metavar="PEERS", help="folder that make_peers.sh filled")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="libraries at a time [1]")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="for each answer [900]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "conformance.json", metavar="FILE.json")
    arguments = parser.parse_args(words)
    pythons = {name: python_of(folder, arguments.peers) for name, (_, _, folder) in LIBRARIES.items()}
    here = {name: python for name, python in pythons.items() if python is not None}
    about = machine.describe()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        reports = pool.map(lambda name: measure(name, here[name], arguments.timeout), here)
        libraries = dict(zip(here, reports, strict=True))
    machine.write({"machine": about, "libraries": libraries}, table(libraries), arguments.out)


if __name__ == "__main__":
    main()
