"""One thread per process: the suite runs on as many workers as there are cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _checkpoints_at_their_steps(monkeypatch):
    """Short runs outrun the disk; which checkpoints they write is not to depend on it."""
    monkeypatch.setattr("surefoot.training.loop.saving.Saving.patient", True)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    """Every test writes its runs into a directory of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _another_user(tmp_path_factory, monkeypatch):
    """The key that signs a user's own runs lies in their home, which tests leave alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
