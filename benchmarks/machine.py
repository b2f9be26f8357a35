"""Describes the machine for the scripts here, and summarises rounds."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parent.parent


def describe() -> dict[str, Any]:
    """Processor, cores, what else was running, versions, commit."""
    import numpy
    import torch

    import surefoot

    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    changed = subprocess.run(["git", "status", "--porcelain", "surefoot"], capture_output=True, text=True, cwd=ROOT)
    return {
        "cpu": model,
        "cores": cores,
        "load_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "surefoot": surefoot.__version__,
        "commit": (commit.stdout.strip() or "unknown") + (" with changes" if changed.stdout.strip() else ""),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of several rounds."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratio(found: dict[str, float], digits: int = 2) -> str:
    """A spread as `median (low to high)`."""
    return f"{found['median']:.{digits}f} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def keep(result: dict[str, Any], out: Path) -> None:
    """The JSON alone."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def write(result: dict[str, Any], table: Sequence[str], out: Path) -> None:
    """The JSON, the Markdown table beside it, and the table on the screen."""
    keep(result, out)
    out.with_suffix(".md").write_text("\n".join(table) + "\n")
    print("\n" + "\n".join(table) + f"\n\nwritten to {out} and {out.with_suffix('.md').name}")


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def head(*cells: str) -> list[str]:
    """The first two lines of a table."""
    return [row(*cells), "|" + "---|" * len(cells)]
