"""Real sweeps: the same bytes as alone, crashes, signals, and kills of every process involved."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.cli.zygote import Zygote
from surefoot.runs import Run, RunDirectory
from surefoot.sweep.local import LocalPool
from surefoot.sweep.pool import Work

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a sweep needs fork")

ENV = """
import os
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Env(CartPoleEnv):
    def __init__(self, how="well", render_mode=None):
        super().__init__()
        self.how, self.count = how, 0
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        print(f"cores {cores} threads {os.environ.get('OMP_NUM_THREADS')}")

    def step(self, action):
        self.count += 1
        if self.how == "raises" and self.count > 20:
            raise RuntimeError("broken env")
        if self.how == "dies" and self.count > 20:
            os.kill(os.getpid(), 9)
        return super().step(action)
"""
FLAGS = ["--preset=none", "--total-steps=512", "--rollout-length=64", "--num-envs=2", "--eval-episodes=1"]
LONG = [*FLAGS[:1], "--total-steps=1G", *FLAGS[2:], "--checkpoint-every=1000"]


def same_run(one, other):
    """Metrics and weights to the byte, and every episode but for its wall time."""
    a, b = Run(RunDirectory(Path(one))), Run(RunDirectory(Path(other)))
    assert a.directory.metrics.read_bytes() == b.directory.metrics.read_bytes()
    assert a.metrics
    assert a.checkpoints.latest == b.checkpoints.latest
    for file in ("policy.safetensors", "state.safetensors"):
        step = str(a.checkpoints.latest)
        assert (a.directory.checkpoints / step / file).read_bytes() == (
            b.directory.checkpoints / step / file
        ).read_bytes()
    assert {**a.config, "name": 0} == {**b.config, "name": 0}


def summary(capfd):
    return json.loads(capfd.readouterr().out.splitlines()[-1])


def test_runs_have_the_same_bytes_as_alone_and_a_crash_affects_no_other(capfd):
    Path("mine.py").write_text(ENV, encoding="utf-8")
    words = ["--env", "mine.py:Env", *FLAGS, "--seeds=3", "--jobs=2", "--out=out", "--json"]
    assert main(["sweep", *words, "--vary", 'env_kwargs={"how": "well"};{"how": "raises"};{"how": "dies"}']) == 1
    found = summary(capfd)
    assert (found["done"], found["failed"]) == (1, 2)
    well, raises, dies = found["runs"]
    assert "broken env" in raises["error"]
    assert "SIGKILL" in dies["error"]
    kwargs = '--env-kwargs={"how": "well"}'
    assert main(["train", "mine.py:Env", *FLAGS, kwargs, "--seed=3", "--threads=1", "--run-dir=alone"]) == 0
    same_run("alone", well["run_dir"])
    printed = (Path(well["run_dir"]) / "output.txt").read_text(encoding="utf-8")
    assert "threads 1" in printed
    if len(os.sched_getaffinity(0)) >= 2:
        assert f"cores [{min(os.sched_getaffinity(0))}]" in printed
    manifest = json.loads((Path(well["run_dir"]) / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"][:3] == ["surefoot", "train", "mine.py:Env"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--engine=torch"], ["--engine=torch", "--threads=2"], ["--workers=2"]], ids="-".join)
def test_the_same_bytes_on_other_engines_and_with_workers(more, capfd):
    jobs = 1 if "--threads=2" in more else 2  # more threads than cores wait for each other for minutes
    words = ["--env", "CartPole-v1", *FLAGS, *more, "--seeds=0..1", f"--jobs={jobs}", "--out=out", "--json"]
    assert main(["sweep", *words]) == 0
    threads = [] if any("threads" in word for word in more) else ["--threads=1"]
    for run in summary(capfd)["runs"]:
        alone = f"alone-{run['seed']}"
        command = ["train", "CartPole-v1", *FLAGS, *more, *threads, f"--seed={run['seed']}", f"--run-dir={alone}"]
        subprocess.run([sys.executable, "-m", "surefoot", *command], check=True)
        same_run(alone, run["run_dir"])


def until(condition, seconds=120.0):
    """Wait for it; the deadline only tells a hang from slowness."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def run_dirs():
    return [path.parent for path in Path("out").glob("*/*/*/manifest.json")]


def latest(path):
    return Run(RunDirectory(path)).checkpoints.latest


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return False


@pytest.fixture
def sweep():
    """A sweep of long runs under way, both of which have a checkpoint; (its process, the one that forks, the runs)."""
    words = ["sweep", "--env", "CartPole-v1", *LONG, "--seeds=0..2", "--jobs=2", "--out=out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "surefoot", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with process:
        try:
            until(lambda: len(run_dirs()) == 2 and all(map(latest, run_dirs())))
            (zygote,) = children(process.pid)
            runs = children(zygote)
            assert len(runs) == 2
            yield process, zygote, runs
        finally:
            process.kill()
    until(lambda: not any(map(alive, (zygote, *runs))))


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and PR_SET_PDEATHSIG")


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_every_run(sweep, number):
    process, zygote, runs = sweep
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert b"To continue:\nsurefoot sweep out" in said
    assert not any(map(alive, (zygote, *runs)))
    for path in run_dirs():
        status = RunDirectory(path).read_status()
        assert status["state"] == "interrupted"
        assert latest(path) == status["step"]


@needs_proc
@pytest.mark.slow
def test_a_schedulers_warning_saves_every_run_and_ends_none(sweep):
    process, zygote, runs = sweep
    for pid in (process.pid, zygote):  # a batch script may signal every process of the job
        os.kill(pid, signal.SIGUSR1)
    until(lambda: all("SIGUSR1: the checkpoint" in (path / "log.txt").read_text() for path in run_dirs()))
    assert all(map(alive, (process.pid, zygote, *runs)))


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("which", ["sweep", "zygote"])
def test_no_run_outlives_a_killed_sweep(sweep, which):
    process, zygote, runs = sweep
    os.kill(process.pid if which == "sweep" else zygote, signal.SIGKILL)
    until(lambda: not any(map(alive, (zygote, *runs))))
    assert process.wait(timeout=120) == (-signal.SIGKILL if which == "sweep" else 1)
    for path in run_dirs():
        status = RunDirectory(path).read_status()
        assert status["state"] == "interrupted"
        assert latest(path) == status["step"]


@needs_proc
@pytest.mark.slow
def test_a_second_sweep_is_told_who_has_the_folder(sweep, capsys):
    process, _, _ = sweep
    assert main(["sweep", "out"]) == 3
    assert f"out is in use by pid {process.pid}" in capsys.readouterr().err


@needs_proc
@pytest.mark.slow
def test_a_cut_off_sweep_ends_with_the_bytes_of_one_that_was_not(capfd):
    words = ["--env", "CartPole-v1", *FLAGS, "--seeds=0..2", "--total-steps=40k", "--checkpoint-every=1000", "--jobs=2"]
    assert main(["sweep", *words, "--out=whole", "--json"]) == 0
    cut = subprocess.Popen([sys.executable, "-m", "surefoot", "sweep", *words, "--out=out"], stdout=subprocess.DEVNULL)
    until(lambda: any(map(latest, run_dirs())))
    cut.kill()
    cut.wait()
    until(lambda: not any(RunDirectory(path).is_locked() for path in run_dirs()))
    assert main(["sweep", "out", "--json"]) == 0
    found = summary(capfd)
    assert found["done"] == 3
    for run in found["runs"]:
        same_run(Path("whole") / Path(run["run_dir"]).relative_to("out"), run["run_dir"])
    assert main(["sweep", "out", "--json"]) == 0
    assert summary(capfd)["skipped"] == 3


@needs_proc
@pytest.mark.slow
def test_the_process_that_forks_has_one_thread_and_leaves_nothing(capfd):
    pool = LocalPool(1)
    zygote = pool._server.pid
    assert len(os.listdir(f"/proc/{zygote}/task")) == 1
    pool.submit(Work("one", ("list", "algos"), Path("out/output.txt")))
    while not (ended := pool.poll(1.0)):
        pass
    assert (ended[0].name, ended[0].code) == ("one", 0)
    assert "ppo-penalty" in Path("out/output.txt").read_text(encoding="utf-8")
    pool.close()
    assert not alive(zygote)


def test_a_killed_sweep_asks_its_runs_to_save_only_once(monkeypatch):
    """A run would take a second signal as haste, and leave without a checkpoint."""
    requests, closed = os.pipe()
    os.close(closed)
    zygote, told = Zygote(requests, requests), []
    monkeypatch.setattr(zygote, "_tell_all", told.append)
    zygote._note(signal.SIGTERM, None)  # from the kernel, because the parent died
    assert list(zygote._lines()) == []  # and the pipe is closed
    assert told == [signal.SIGTERM]
    for pipe in (requests, zygote._woken, zygote._wakes):
        os.close(pipe)
