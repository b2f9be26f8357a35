"""One thread per process: the suite runs on as many workers as there are cores."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the runs that tests start would ignore it as well

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """`sampled(n)`: of a test's parameters n, spread over all of them, are quick tests; the others are slow ones."""
    families = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None and hasattr(item, "callspec"):
            families.setdefault((item.module, item.cls, item.originalname), []).append(item)
    for cases in families.values():
        wanted = cases[0].get_closest_marker("sampled").args[0]
        kept = {round(at * (len(cases) - 1) / max(wanted - 1, 1)) for at in range(wanted)}
        for at, case in enumerate(cases):
            if at not in kept:
                case.add_marker(pytest.mark.slow)
    # These take minutes on one core. At the end, the other worker would have nothing left to do.
    items.sort(key=lambda item: item.path.name not in ("test_site.py", "test_release.py"))
