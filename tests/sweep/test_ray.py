"""A real Ray cluster of three nodes, on loopback only."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ray_sweep.py"


def why_not():
    """The reason why no cluster can be made here, if there is one."""
    if find_spec("ray") is None:
        return 'Ray is not installed: pip install "surefoot[ray]"'
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("ip"):
        return "network namespaces need Linux, unshare and ip"
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    made = subprocess.run(["unshare", "--net", *user, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    return f"no network namespace can be made: {made.stderr.strip()}" if made.returncode else ""


@pytest.mark.slow
def test_a_sweep_survives_a_lost_node_ctrl_c_and_a_kill_with_the_bytes_of_a_local_one():
    reason = why_not()
    if reason:
        pytest.skip(reason)
    words = [sys.executable, str(SCRIPT), "--runs=6", "--out=found.json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert found["passed"]
