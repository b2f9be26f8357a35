"""Ctrl-C while a large library is imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.cli.interrupts import interrupted_imports, is_importing

ROOT = Path(__file__).parent.parent.parent
# A process in the background ignores Ctrl-C, and its children do, too.
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from surefoot.cli.main import main
sys.exit(main())
"""
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
        [sys.executable, "-c", MAIN, *command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "surefoot: interrupted\n")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def ctrl_c():
    """Sets what Ctrl-C does."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_otherwise_ctrl_c_raises_and_afterwards_it_is_as_before(ctrl_c):
    ctrl_c(signal.default_int_handler)
    with interrupted_imports(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it(ctrl_c):
    ctrl_c(signal.SIG_IGN)
    with interrupted_imports():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_modules_that_are_there_or_nowhere_are_not_being_imported():
    assert not is_importing("torch")
    assert not is_importing("no_such_module")
