"""Same seed, same bytes: in separate processes, whatever the order of their sets and dictionaries of names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.runs import command, opened, same


@pytest.mark.slow
def test_the_hash_seed_of_python_changes_no_byte(whole, tmp_path):
    """Real interpreters: PYTHONHASHSEED acts only when one starts."""
    program = Path(sys.executable).with_name("surefoot")
    paths = {seed: tmp_path / f"hash seed {seed}" for seed in ("0", "1")}
    started = [
        subprocess.Popen(
            [program, *command(path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        for seed, path in paths.items()
    ]
    assert [process.wait(300) for process in started] == [0, 0]
    left, right = map(opened, paths.values())
    same(left, right)
    same(left, whole)
    for name in ("state.safetensors", "state.json"):  # but for the seconds that it took
        one, other = (next(run.path.glob(f"checkpoints/1600/{name}")).read_bytes() for run in (left, right))
        if name == "state.json":
            one, other = ([line for line in text.splitlines() if b'"seconds"' not in line] for text in (one, other))
            for log in (b"timings.jsonl", b"episodes.csv"):  # whose sizes depend on them
                one, other = ([line for line in lines if log not in line] for lines in (one, other))
        assert one == other
