"""Every algorithm with every kind of observation, action, memory and mask; the suite covers them in pairs.

    python benchmarks/every_combination.py [--workers 2]

Run it in the repository's root. Each case trains for a few updates and checks the first ratios, and that a run that was
killed and resumed has the same bytes as one that was not. The result goes to
`benchmarks/results/every_combination.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym

from tests.combinations import full_product
from tests.contracts.test_any_space import ID, name, test_it_trains_acts_within_its_space_and_resumes_exactly

RESULTS = Path(__file__).parent / "results" / "every_combination.json"


def check(case: dict[str, object]) -> tuple[str, str | None]:
    """(the case, what went wrong with it)."""
    if ID not in gym.registry:
        gym.register(ID, entry_point="tests.combinations:make")
    with tempfile.TemporaryDirectory() as folder:
        try:
            test_it_trains_acts_within_its_space_and_resumes_exactly(case, Path(folder))
        except Exception:
            return name(case), traceback.format_exc()
    return name(case), None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    start = time.perf_counter()
    cases = full_product()
    with ProcessPoolExecutor(arguments.workers) as pool:
        found = dict(pool.map(check, cases, chunksize=4))
    failed = {case: why for case, why in found.items() if why}
    result = {"cases": len(found), "failed": sorted(failed), "seconds": round(time.perf_counter() - start)}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    if failed:
        print(next(iter(failed.values())), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
