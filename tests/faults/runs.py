"""A run of half a second in which everything happens, and what it means that two runs are the same."""

import json
import shutil
import tempfile
from pathlib import Path

import surefoot
from surefoot.cli.main import main
from surefoot.runs import checkpoints
from surefoot.runs.checkpoints import BEST, LATEST, MANIFEST, pointed
from surefoot.training.loop.saving import Saving
from tests.helpers import episode_rows

Saving.patient = True  # a run of half a second outruns the disk; which checkpoints it writes is not to depend on that

TINY = {
    "env": "CartPole-v1",
    "algo": "ppo",
    "preset": "none",
    "progress": False,
    "seed": 1,  # its best policy comes late: BEST moves often
    "total_steps": 1600,
    "num_envs": 2,
    "rollout_length": 16,
    "num_epochs": 1,
    "num_minibatches": 1,
    "hidden_sizes": (8,),
    "log_every": 96,
    "checkpoint_every": 160,
    "eval_every": 320,
    "selection_episodes": 2,
    "eval_episodes": 2,
    "normalize_observations": True,
    "normalize_rewards": True,
    "learning_rate_schedule": "linear",
}


def command(run_dir=None, **changes):
    """TINY as a command line: the words after `surefoot`."""
    settings = {**TINY, **changes}
    if settings["eval_every"] is None:
        del settings["selection_episodes"]
    words = ["train", *([settings.pop("env")] if settings.get("env") else [])]
    settings.pop("env", None)
    settings.pop("progress")
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{flag}", *map(str, value)]
        else:
            words.append(f"--{flag}={value}")
    return [*words, *([f"--run-dir={run_dir}"] if run_dir else [])]


def cli(words):
    """In a child: the command line."""
    return main(words)


def go_on(path, **how):
    """In a child: resume from Python."""
    surefoot.resume(path, progress=False, **how)


def copy(run, target):
    shutil.copytree(run.path, target, symlinks=True)
    return surefoot.Run(type(run.directory)(target))


def opened(path):
    """The run at a path."""
    from surefoot.runs import RunDirectory

    return surefoot.Run(RunDirectory(path))


def newest(run):
    return pointed(run.path / "checkpoints", LATEST)


def best(run):
    return pointed(run.path / "checkpoints", BEST)


def same(left, right):
    """Rows, weights, the best checkpoint and the final evaluation, byte for byte; nothing of a killed writer."""
    assert (left.path / "metrics.jsonl").read_bytes() == (right.path / "metrics.jsonl").read_bytes()
    assert episode_rows(left) == episode_rows(right)
    for pointer in (newest, best):
        assert pointer(left).name == pointer(right).name
        for name in ("policy.safetensors", "policy.json"):
            assert (pointer(left) / name).read_bytes() == (pointer(right) / name).read_bytes()
    for name in ("eval", "best", "total_steps", "updates", "episodes", "train_return"):
        assert left.result[name] == right.result[name]
    assert leftovers(left.path) == []


def leftovers(path):
    """Temporary files that nobody will ever finish."""
    return [str(found) for found in path.rglob(".tmp-*")]


def sign(folder, schema=checkpoints.SCHEMA, **changes):
    """Give a checkpoint's files, as they are now, a manifest that fits: what a forger would do."""
    manifest = json.loads((folder / MANIFEST).read_text())
    facts = {name: manifest[name] for name in ("env", "algo", "seed", "mid_rollout")} | changes
    files = {name: (folder / name).read_bytes() for name in manifest["files"]}
    ours, checkpoints.SCHEMA = checkpoints.SCHEMA, schema
    try:
        with tempfile.TemporaryDirectory() as elsewhere:
            forged = checkpoints.write_checkpoint(Path(elsewhere), int(folder.name), files, facts)
            shutil.copy(forged / MANIFEST, folder / MANIFEST)
    finally:
        checkpoints.SCHEMA = ours
