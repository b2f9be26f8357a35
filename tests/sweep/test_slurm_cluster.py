"""Sweeps on a real Slurm cluster of one node, on loopback."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.runs import RunDirectory
from surefoot.sweep.slurm_submit import label
from tests.slurm_cluster import one_node, said, until, version, why_not
from tests.sweep.test_local import ENV, LONG, latest, run_dirs, same_run, summary

pytest.importorskip("submitit")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
RUNS = ["--env", "CartPole-v1", "--preset=none", "--rollout-length=64", "--num-envs=2", "--eval-episodes=1"]
SHORT = [*RUNS, "--total-steps=40k", "--checkpoint-every=2000"]


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, one_node(folder) as variables:
        yield variables


@pytest.fixture(autouse=True)
def _slurm(cluster, monkeypatch):
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)


@contextmanager
def sweeping(*words):
    """A sweep in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "surefoot", "sweep", *words, "--on=slurm"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_version_is_known_without_a_cluster(monkeypatch):
    monkeypatch.delenv("SLURM_CONF")
    assert re.fullmatch(r"slurm\S* \d+\.\d+\S*", version())


def queued():
    """The ids of the jobs that wait or run."""
    return set(said(["squeue", "--noheader", "--format=%i"], {}).split())


def job_of(path):
    """The id of a run's job."""
    name = label(Path("out"), str(path.relative_to("out")))
    rows = said(["squeue", "--noheader", "--format=%i %j"], {}).splitlines()
    return next(row.split()[0] for row in rows if row.split()[1] == name)


def tell(*command):
    subprocess.run(command, check=True)


def test_six_runs_of_which_one_is_queued_again_and_one_out_of_time_end_as_local_ones_do(capfd):
    with sweeping(*SHORT, "--seeds=0..5", "--out=out", "--json") as process:
        until(lambda: sum(latest(path) is not None for path in run_dirs()) >= 2)
        first, second = [path for path in run_dirs() if latest(path) is not None][:2]
        tell("scontrol", "requeue", job_of(first))  # cancels it and queues it again
        tell("scancel", "--signal=USR2", job_of(second))  # what Slurm sends before the time limit
        found, _ = process.communicate(timeout=600)
    assert process.returncode == 0, found
    found = json.loads(found.splitlines()[-1])
    assert (found["done"], found["failed"]) == (6, 0)
    for path in (first, second):
        assert "resuming" in (path / "output.txt").read_text(encoding="utf-8")
    assert not list(Path("out/.slurm").iterdir())
    seeds = ",".join(path.name.rpartition("-s")[2] for path in (first, second))
    assert main(["sweep", *SHORT, f"--seeds={seeds}", "--out=local", "--json"]) == 0
    for run in summary(capfd)["runs"]:
        same_run(Path("out") / Path(run["run_dir"]).relative_to("local"), run["run_dir"])


def test_jobs_outlive_their_sweep_and_the_next_one_waits_for_them(capfd):
    with sweeping("--env", "CartPole-v1", *LONG, "--seeds=0..3", "--out=out") as process:  # three of them have room
        until(lambda: sum(latest(path) is not None for path in run_dirs()) == 3)
        process.kill()
    assert main(["sweep", "out"]) == 2
    assert "4 of the runs in out are jobs in Slurm's queue" in capfd.readouterr().err
    jobs = queued()
    with sweeping("out") as process:
        assert "4 runs in out" in process.stdout.readline()
        tell("scancel", job_of(run_dirs()[0]))
        assert "it was cancelled" in process.stdout.readline()
        assert queued() < jobs
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 143
    assert "surefoot sweep out --on=slurm" in said
    assert not queued()
    for path in run_dirs():
        status = RunDirectory(path).read_status()
        assert (status["state"], status["step"]) == ("interrupted", latest(path))


def test_a_run_that_fails_is_not_repeated():
    Path("mine.py").write_text(ENV, encoding="utf-8")
    words = ["--env", "mine.py:Env", *RUNS[2:], "--total-steps=512", "--seeds=0", "--out=out", "--json"]
    with sweeping(*words, "--vary", 'env_kwargs={"how": "raises"};{"how": "dies"}') as process:
        found, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    why = " ".join(run["error"] for run in json.loads(found.splitlines()[-1])["runs"])
    assert "broken env" in why
    assert "killed by SIGKILL" in why
    for output in Path("out").glob("*/*/*/output.txt"):
        assert output.read_text(encoding="utf-8").count("engine ") == 1


def test_the_example_of_a_job_queues_itself_again_and_continues_its_run():
    script = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["CartPole-v1", *RUNS[2:], "--total-steps=5000", "--checkpoint-every=500", "--seed=0", "--run-dir=run"]
    asked = ["--nodes=1", "--cpus-per-task=2", "--output=job.txt", "--parsable"]
    job = said(["sbatch", *asked, str(script), *words], {"PATH": path, "OMP_NUM_THREADS": "1"}).strip()
    until(lambda: latest(Path("run")) is not None or not queued(), seconds=300)
    tell("scancel", "--batch", "--signal=USR1", job)
    until(lambda: not queued(), seconds=300)
    print(Path("job.txt").read_text(encoding="utf-8"))
    assert said(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"], {}).strip() == "COMPLETED"
    assert RunDirectory(Path("run")).read_status()["state"] == "done"
    assert "resuming" in Path("job.txt").read_text(encoding="utf-8")
