"""A tune whose trials are carried out elsewhere: through the pools of a sweep, which `tests/sweep` examines."""

import re
import shlex
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.sweep import ray_cluster, ray_pool, slurm_pool, slurm_submit
from tests.tuning.pretending import PretendedPool, settings_of

SHORT = ["--total-steps=18k", "--eval-episodes=4", "--seeds=2", "--validation-seeds=3", "--budget=4-trials"]
PLACES = {
    "ray": ["--address=auto", "--cpus-per-run=2", "--shared"],
    "slurm": ["--slurm=time=1:00:00", "--slurm=mem=8G", "--gpus-per-run=1"],
}


@pytest.fixture
def made(monkeypatch):
    """The pools that were asked for: (arguments, options). They only pretend to train; the first is interrupted."""
    found = []

    def make(*given, **options):
        pool = PretendedPool()
        pool.interrupts_after = None if found else 3
        found.append((given, options, pool))
        return pool

    monkeypatch.setattr(ray_pool, "RayPool", make)
    monkeypatch.setattr(slurm_pool, "SlurmPool", make)
    monkeypatch.setattr(ray_cluster, "require_ray", lambda: None)
    monkeypatch.setenv("RAY_TMPDIR", "nowhere")  # no cluster was ever started on this machine
    monkeypatch.setattr(ray_cluster, "RayCluster", lambda address: f"the cluster at {address}")
    monkeypatch.setattr(slurm_submit, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm_submit, "refuse_queued", lambda folder: None)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_tune_on_a_cluster_is_stopped_and_goes_on_there(place, made, capsys):
    assert main(["tune", "CartPole-v1", *SHORT, "--out=a tune", "--on", place, *PLACES[place]]) == 130
    said = re.search(r"To continue:\n\s*surefoot (.*)", capsys.readouterr().err)[1]
    assert main(shlex.split(said)) == 0
    assert len(made) == 2
    for given, options, pool in made:
        assert pool.commands
        if place == "ray":
            assert given == ("the cluster at auto", Path("a tune"))
            assert (options["cpus"], options["shared"]) == (2, True)
        else:
            _, folder, _, resources = given
            assert folder == Path("a tune")
            assert resources.gpus == 1
            assert dict(resources.options) == {"time": "1:00:00", "mem": "8G"}
    words = [words for *_, pool in made for words in pool.commands]
    assert len({settings_of(each)["learning_rate"] for each in words if "--learning-rate" in " ".join(each)}) >= 4
