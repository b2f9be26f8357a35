"""The Triton kernels compile for a real GPU: the interpreter, in which the other tests run them, accepts more."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def launches(*words, interpreted):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1" if interpreted else "0"}
    command = [sys.executable, "-m", "tests.kernels.launches", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_runs_and_populations_launch_compiles_for_an_h200(tmp_path):
    file = str(tmp_path / "launches.json")
    launches("record", file, interpreted=True)
    said = launches("compile", file, "90", interpreted=False)
    assert {line.split()[0] for line in said.splitlines()} >= {
        "_play", "_look", "_score", "_moments", "_gradients", "_add_up", "_descend", "_sum", "_activity",
        "_advantages", "_running", "_count", "_pack", "_totals", "_coarse", "_finer", "_finest",
        "_chosen", "_deviations", "_forward", "_to_inputs", "_to_weights", "_slopes", "_losses", "_told",
        "_score_parts", "_weigh_parts"
    }  # fmt: skip
    alone_and_of_agents = {line.split()[2] for line in said.splitlines() if line.startswith("_advantages")}
    fused = {line.split()[3] for line in said.splitlines() if line.startswith("_score_parts")}
    assert fused == {"0"}  # so actions are scored as they are learned from, whatever else the kernel computes
    assert len(alone_and_of_agents) == 1  # an agent's numbers come from a table, and are used in the same way
