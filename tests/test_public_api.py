"""The public names, pinned: adding or dropping one is a decision."""

import inspect
import subprocess
import sys

import surefoot

PUBLIC = [
    "Agent",
    "BusyError",
    "Callback",
    "CheckpointError",
    "EnvError",
    "Evaluation",
    "NonFiniteError",
    "Run",
    "SurefootError",
    "UsageError",
    "__version__",
    "diff",
    "evaluate",
    "load",
    "replay",
    "resume",
    "train",
    "tune",
    "video",
]


def test_the_public_names_are_these():
    assert surefoot.__all__ == PUBLIC == dir(surefoot)
    for name in PUBLIC:
        assert getattr(surefoot, name) is not None


def test_everything_public_is_documented():
    for name in PUBLIC:
        if not name.startswith("_"):
            assert inspect.getdoc(getattr(surefoot, name)), name


def test_signatures_are_these():
    parameters = {
        name: list(inspect.signature(getattr(surefoot, name)).parameters)
        for name in ("train", "resume", "load", "evaluate")
    }
    assert parameters == {
        "train": ["env", "algo", "preset", "config", "run_dir", "callbacks", "progress", "trust", "settings"],
        "resume": ["run", "total_steps", "max_time", "strict", "trust", "callbacks", "progress"],
        "load": ["run", "checkpoint", "encoder", "trust", "backend"],
        "evaluate": ["agent", "env", "episodes", "seed", "deterministic", "max_steps", "env_settings"],
    }
    predict = list(inspect.signature(surefoot.Agent.predict).parameters)
    assert predict == ["self", "observation", "state", "episode_start", "deterministic", "action_masks"]


def test_importing_the_package_and_reading_the_settings_imports_no_torch():
    code = (
        "import sys, surefoot, surefoot.cli.train, surefoot.cli.main\n"
        "surefoot.cli.train._parser('trpo')\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
