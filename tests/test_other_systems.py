"""macOS and Windows: what only Linux has is not needed to train with PyTorch. `tests/other_system.py` takes it away."""

import fcntl
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.errors import BusyError
from surefoot.runs import RunDirectory, locks

REPOSITORY = Path(__file__).parent.parent
SHORT = ["--preset", "none", "--total-steps", "1k", "--num-envs", "2", "--rollout-length", "64", "--eval-episodes", "2"]
# Text is read and written as UTF-8 in so many words: elsewhere that is not what one gets without asking.
STRICT = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]


def on(system, *words, code=0, **env):
    done = subprocess.run(
        [sys.executable, *STRICT, "-m", "tests.other_system", system, *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("system", ["macos", "windows"])
def test_a_run_trains_to_the_end_and_resumes(system, tmp_path):
    out, _ = on(system, "train", "CartPole-v1", *SHORT, "--engine", "torch", "--seed", "1", "--run-dir", "run")
    assert "greedy return" in out
    assert ("cannot lock files" in out) == (system == "windows")  # in this disguise it has no msvcrt either
    out, _ = on(system, "resume", "run", "--total-steps", "2k", "--json", PYTHONIOENCODING="cp1252")
    assert json.loads(out)["total_steps"] > 1000
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "done"


@pytest.mark.slow
def test_what_needs_linux_says_so_and_the_rest_goes_on():
    _, err = on("macos", "train", "CartPole-v1", *SHORT, "--workers", "2", code=2)
    assert "worker processes need Linux and this is Darwin; train with workers=0" in err
    out, _ = on("windows", "train", "CartPole-v1", *SHORT, "--workers", "auto", "--run-dir", "run")
    assert "workers 0 (compiled code steps the envs)" in out or "workers cannot be used" in out
    on("windows", "doctor", "CartPole-v1", "--episodes", "2", PYTHONIOENCODING="cp1252")


class FakeWindows:
    """`msvcrt.locking`: one byte where the file stands, for whoever opened it, until it is closed."""

    LK_NBLCK = 2

    def locking(self, descriptor, mode, size):
        assert (mode, size) == (self.LK_NBLCK, 1)
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        kind = fcntl.F_WRLCK if writable else fcntl.F_RDLCK
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, place, size, 0))


def test_a_run_is_locked_on_windows_too(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "msvcrt", FakeWindows())
    first = RunDirectory.create(tmp_path / "run", "env", "ppo", 0)
    second = RunDirectory(first.path)
    assert second.is_locked()
    with pytest.raises(BusyError, match=rf"in use by pid {os.getpid()}"):
        second.lock()
    first.unlock()
    assert not second.is_locked()
    second.lock()
    second.unlock()
    assert locks.complaints() == []


def test_a_system_without_locks_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "msvcrt", None)
    run = RunDirectory.create(tmp_path / "run", "env", "ppo", 0)
    assert not run.is_locked()
    run.unlock()
    assert "cannot lock files" in locks.complaints()[0]
