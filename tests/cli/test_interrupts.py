"""Ctrl-C while a large library is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TORCH = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    raise ImportError("a foreign error") from None
"""


@pytest.mark.parametrize("command", [["bench", "CartPole-v1"], ["train", "CartPole-v1", "--run-dir", "run"]])
def test_an_interrupt_during_an_import_is_said_as_such(command, tmp_path):
    """A library may turn it into another error, as this torch does."""
    stand_in = tmp_path / "path" / "torch"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text(TORCH)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(stand_in.parent), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "surefoot", *command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "surefoot: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_afterwards_ctrl_c_is_as_before():
    import signal

    from surefoot.cli.interrupts import interrupted_imports, is_importing

    before = signal.getsignal(signal.SIGINT)
    with interrupted_imports(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert not is_importing("torch")
    assert not is_importing("no_such_module")
