"""A few of the changes that `benchmarks/fuzz_runs.py` tries by the thousand; its last result is committed."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
FIXTURE = Path(__file__).parent.parent / "fixtures" / "runs-0.1.0" / "ppo-cartpole"


@pytest.mark.slow
def test_no_change_of_a_file_gives_a_traceback_a_hang_or_a_crash(tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, str(BENCHMARKS / "fuzz_runs.py"), "--first=20000", "--mutations=150", f"--out={out}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800)
    found = json.loads(out.read_text())
    assert found["faults"] == []
    assert found["mutations"] == 150
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [486, 692, 756, 1034, 1064, 2046, 2374, 2734, 4110])
def test_changes_that_once_gave_a_traceback(number, tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, str(BENCHMARKS / "fuzz_runs.py"), f"--first={number}", "--mutations=1", f"--out={out}"]
    subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    assert json.loads(out.read_text())["faults"] == []


def test_a_number_repeats_a_change_and_every_file_is_changed(tmp_path, monkeypatch):
    import shutil

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from mutations import CHECKPOINT_FILES, RUN_FILES, mutate

    changed = set()
    for number in range(300):
        said = []
        for name in ("first", "second") if number < 20 else ("first",):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            shutil.copytree(FIXTURE, tmp_path / name)
            said.append(mutate(tmp_path / name, Random(f"surefoot {number}")))
        assert len(set(said)) == 1
        changed.add(said[0].partition(":")[0])
    assert changed == {*RUN_FILES, *CHECKPOINT_FILES}
