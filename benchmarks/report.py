"""Puts the tables of benchmarks/results into the pages of docs/.

    python benchmarks/report.py

A block between `<!-- results NAME -->` and `<!-- end -->` is replaced by results/NAME.md and the machine of
results/NAME.json. Blocks without a result are left unchanged.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
NAMES = ("performance.md", "scale.md", "improvements.md", "conformance.md", "mujoco.md")
PAGES = tuple(DOCS / name for name in NAMES)
RESULTS = Path(__file__).resolve().parent / "results"
BLOCK = re.compile(r"(<!-- results (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, results: Path = RESULTS) -> str:
    def block(found: re.Match[str]) -> str:
        table, numbers = results / f"{found[2]}.md", results / f"{found[2]}.json"
        if not (table.exists() and numbers.exists()):
            return found[0]
        machine = json.loads(numbers.read_text())["machine"]
        where = f"{machine['cpu']}, {machine['cores']} cores, commit {machine['commit']}"
        return f"{found[1]}\n{table.read_text().strip()}\n\n*{where}; [all numbers](../benchmarks/results/{numbers.name})*\n\n{found[3]}"  # noqa: E501

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{page} filled")
