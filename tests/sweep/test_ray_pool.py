"""The pool on a Ray cluster, with a cluster that only pretends: nodes that die, hang and come back, and full disks."""

import json
import os
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from surefoot import __version__
from surefoot.cli.main import main
from surefoot.errors import SurefootError, UsageError
from surefoot.runs import RunDirectory
from surefoot.runs.checkpoints import write_checkpoint
from surefoot.sweep import ray_cluster, ray_pool, ray_runner
from surefoot.sweep.carry_out import LOSSES, carry_out, track
from surefoot.sweep.display import Silent
from surefoot.sweep.folder import SweepFolder
from surefoot.sweep.grid import Grid
from surefoot.sweep.plan import expand
from surefoot.sweep.pool import Ended, Work
from surefoot.sweep.ray_cluster import Lost, Unreachable
from surefoot.sweep.ray_pool import RayPool
from surefoot.training.config.toml_files import to_toml

PLAN = expand([Grid(envs=("CartPole-v1",), seeds=(0, 1, 2), settings={"total_steps": 2000})])
CONFIG = to_toml(PLAN.runs[0].point.config)


class PretendedRun:
    """In place of a LocalPool: every poll is 500 steps, with a row and a checkpoint; the run ends after 2,000."""

    code = 0

    def __init__(self, slots, *, cores_each, one_thread):
        self.work, self.step, self.asked = None, 0, []

    def submit(self, work):
        self.work = work
        run = RunDirectory(work.output.parent)
        latest = run.checkpoints / "LATEST"
        self.step = int(latest.read_text(encoding="utf-8")) if latest.exists() else 0
        with open(work.output, "a", encoding="utf-8") as file:
            file.write(f"{work.words[0]} from {self.step}\n")
        run.checkpoints.mkdir(exist_ok=True)
        run.config.write_text(CONFIG, encoding="utf-8")
        run.manifest.write_text("{}", encoding="utf-8")
        self._status("running")

    def poll(self, seconds):
        if self.asked:
            self._status("interrupted")
            return [Ended(self.work.name, 143)]
        run = RunDirectory(self.work.output.parent)
        self.step += 500
        with open(run.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.step}) + "\n")
        write_checkpoint(run.checkpoints, self.step, {"policy": str(self.step).encode()}, {})
        if self.step < 2000:
            return []
        self._status("done" if self.code == 0 else "failed")
        return [Ended(self.work.name, self.code)]

    def stop(self, *, at_once=False):
        self.asked.append(at_once)

    def close(self):
        pass

    def _status(self, state):
        text = json.dumps({"state": state, "step": self.step})
        RunDirectory(self.work.output.parent).status.write_text(text, encoding="utf-8")


class Answer(SimpleNamespace):
    """Told apart by identity, as those of Ray are."""

    __eq__, __hash__ = object.__eq__, object.__hash__


class PretendedCluster:
    """Nodes with one CPU each. `faults`: {number of the call: what it raises}."""

    def __init__(self, nodes=2, faults=()):
        self.nodes, self.faults, self.calls, self.runners = nodes, dict(faults), 0, []
        self.killed, self.closed = [], False

    def room(self, cpus, gpus):
        return int(self.nodes // cpus)

    def start_runner(self, cpus, gpus):
        self.runners.append(ray_runner.Runner())
        return self.runners[-1]

    def call(self, runner, method, *arguments):
        self.calls += 1
        fault = self.faults.get(self.calls) or (Lost("killed") if runner in self.killed else None)
        try:
            return Answer(fault=fault, found=None if fault else getattr(runner, method)(*arguments))
        except SurefootError as error:
            return Answer(fault=error)

    def ready(self, answers, seconds):
        return list(answers)

    def result(self, answer):
        if answer.fault:
            raise answer.fault
        return answer.found

    def kill(self, runner):
        self.killed.append(runner)

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def pretended(monkeypatch, tmp_path):
    home = tmp_path / "homes"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    monkeypatch.setattr(ray_runner, "LocalPool", PretendedRun)
    for name in ray_runner.GPUS:  # a runner changes them
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return home


def run_all(pool, plan=PLAN):
    runs = track(SweepFolder(Path("out")), plan)
    watcher = Recorder()
    try:
        carry_out(runs, pool, watcher, [])
    finally:
        pool.close()
    return runs, watcher


class Recorder(Silent):
    def __init__(self):
        self.losses = []

    def lost(self, run, why):
        self.losses.append((run.run.seed, why))


def output(run):
    return (run.directory.path / "output.txt").read_text(encoding="utf-8").splitlines()


def steps(run):
    lines = run.directory.metrics.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


def make_pool(cluster, **options):
    folder = Path("out")
    folder.mkdir(exist_ok=True)
    return RayPool(cluster, folder, **options)


def submit_one(pool, name="one"):
    directory = Path("out", name).absolute()
    pool.submit(Work(name, ("train", "CartPole-v1", f"--run-dir={directory}"), directory / "output.txt"))
    return RunDirectory(directory)


def test_runs_are_carried_out_on_the_nodes_and_copied_back(pretended):
    cluster = PretendedCluster(nodes=2)
    runs, _ = run_all(make_pool(cluster))
    assert [run.stage for run in runs] == ["done"] * 3
    for run in runs:
        assert steps(run) == [500, 1000, 1500, 2000]
        assert output(run) == ["train from 0"]
        latest = run.directory.checkpoints / "2000" / "policy"
        assert latest.read_bytes() == b"2000"
        assert not run.directory.is_locked()
    assert len(cluster.runners) == 2  # the third run had the runner of another one
    assert cluster.closed
    assert not list(pretended.iterdir())


def test_a_run_under_way_is_seen_here_and_no_other_process_can_take_it():
    pool = make_pool(PretendedCluster())
    directory = submit_one(pool)
    while not directory.metrics.exists():
        assert pool.poll(0.0) == []
    assert directory.read_status()["state"] == "running"
    assert directory.is_locked()
    other = make_pool(PretendedCluster())
    submit_one(other)
    assert other.poll(0.0) == [Ended("one", 3)]
    assert "is in use by pid" in (directory.path / "output.txt").read_text(encoding="utf-8")
    pool.close()
    assert directory.read_status()["state"] == "interrupted"


def test_after_a_lost_node_a_run_goes_on_elsewhere_from_its_last_checkpoint():
    cluster = PretendedCluster(nodes=1, faults={4: Lost("the node died")})  # start, look, look, look
    runs, watcher = run_all(make_pool(cluster))
    assert [run.stage for run in runs] == ["done"] * 3
    assert watcher.losses == [(0, "the node died")]
    assert output(runs[0]) == ["train from 0", "resume from 1000"]
    assert steps(runs[0]) == [500, 1000, 1500, 2000]
    assert len(cluster.runners) == 2


def test_a_node_lost_before_anything_was_copied_means_a_fresh_start():
    runs, _ = run_all(make_pool(PretendedCluster(nodes=1, faults={1: Lost("gone"), 2: Lost("gone")})))
    assert [run.stage for run in runs] == ["done"] * 3
    assert output(runs[0]) == ["train from 0"]


def test_a_run_that_loses_every_node_fails_and_is_not_tried_for_ever():
    faults = {number: Lost("out of memory") for number in range(1, LOSSES + 2)}
    runs, _ = run_all(make_pool(PretendedCluster(nodes=1, faults=faults)))
    assert [run.stage for run in runs] == ["failed", "done", "done"]
    assert runs[0].error == f"its node was lost {LOSSES + 1} times, last because: out of memory"


def test_a_run_that_fails_by_itself_is_not_repeated(monkeypatch):
    monkeypatch.setattr(PretendedRun, "code", 1)
    runs, watcher = run_all(make_pool(PretendedCluster()))
    assert [run.stage for run in runs] == ["failed"] * 3
    assert [output(run) for run in runs] == [["train from 0"]] * 3
    assert watcher.losses == []


def test_own_code_needs_no_second_consent_on_another_node():
    pool = make_pool(PretendedCluster())
    words = ("resume", str(Path("out/one").absolute()))
    work = Work("one", words, Path("out/one/output.txt").absolute())
    assert pool._trusting(work) == words  # began elsewhere: its signature decides
    submit_one(pool)
    assert pool._trusting(work) == (*words, "--trust")
    pool.close()


def test_a_node_that_does_not_answer_for_a_while_is_waited_for_and_then_given_up(monkeypatch):
    monkeypatch.setattr(ray_pool, "PATIENCE", 30.0)
    now = [0.0]
    monkeypatch.setattr(ray_pool, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray_pool, "sleep", lambda seconds: None)
    cluster = PretendedCluster(faults={number: Unreachable("no answer") for number in (3, 5, 6, 7)})
    pool = make_pool(cluster)
    submit_one(pool)
    ended = []
    for _ in range(7):
        ended += pool.poll(0.0)
        now[0] += 20.0
    assert ended == [Ended("one", -signal.SIGKILL, "no answer")]
    assert cluster.killed == cluster.runners
    pool.close()


def test_a_full_disk_here_costs_no_copy(monkeypatch):
    pool = make_pool(PretendedCluster())
    directory = submit_one(pool)
    refusals = [OSError(28, "No space left on device")] * 2

    def write(target, changes):
        if refusals:
            raise refusals.pop()
        real(target, changes)

    real = ray_pool.write_changes
    monkeypatch.setattr(ray_pool, "write_changes", write)
    monkeypatch.setattr(ray_pool, "sleep", lambda seconds: None)
    ended = []
    while not ended:
        ended = pool.poll(0.0)
        for job in pool._busy.values():
            job.due = 0.0
    assert ended == [Ended("one", 0)]
    assert (directory.checkpoints / "2000").is_dir()
    assert len(directory.metrics.read_text(encoding="utf-8").splitlines()) == 4
    monkeypatch.setattr(ray_pool, "PATIENCE", -1.0)
    refusals += [OSError(28, "No space left on device")] * 9
    submit_one(pool, "two")
    pool.poll(0.0)
    with pytest.raises(SurefootError, match=r"cannot write .*two: No space left"):
        pool.poll(0.0)
    pool.close()


def test_stopping_asks_runs_to_save_and_drops_those_that_wait_for_a_node():
    cluster = PretendedCluster()
    pool = make_pool(cluster, jobs=2)
    one = submit_one(pool)
    pool.poll(0.0)
    submit_one(pool, "two")
    pool.stop()
    ended = pool.poll(0.0) + pool.poll(0.0)
    assert sorted(ended, key=lambda end: end.name) == [Ended("one", 143), Ended("two", -signal.SIGTERM)]
    assert one.read_status()["state"] == "interrupted"
    assert cluster.killed == cluster.runners[1:]
    pool.close()


def test_a_kill_does_not_wait_for_a_node_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(ray_pool, "GRACE", -1.0)
    cluster = PretendedCluster()
    pool = make_pool(cluster)
    submit_one(pool)
    pool.poll(0.0)
    pool.stop(at_once=True)
    assert pool.poll(0.0) == [Ended("one", -signal.SIGKILL)]
    assert cluster.killed == cluster.runners
    pool.close()


def test_slots_follow_the_nodes(monkeypatch):
    monkeypatch.setattr(ray_pool, "COUNTING", -1.0)
    cluster = PretendedCluster(nodes=4)
    pool = make_pool(cluster, cpus=2)
    assert pool.slots == 2
    cluster.nodes = 9
    assert pool.slots == 4
    cluster.nodes = 0
    assert pool.slots == 1  # it waits for a node
    assert make_pool(cluster, jobs=3).slots == 3
    with pytest.raises(UsageError, match="no node of the Ray cluster has 2 CPUs"):
        make_pool(cluster, cpus=2)
    assert cluster.closed


def test_an_idle_runner_gives_its_place_back(monkeypatch, pretended):
    monkeypatch.setattr(ray_pool, "IDLE", -1.0)
    cluster = PretendedCluster()
    pool = make_pool(cluster)
    submit_one(pool)
    while not pool.poll(0.0):
        pass
    pool.poll(0.0)
    assert pool._idle == []
    pool.close()


@pytest.mark.parametrize(("gpus", "seen"), [(0, ""), (0.5, "3")])
def test_a_run_sees_only_the_gpus_that_it_has_reserved(gpus, seen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # as Ray sets it for a runner
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    pool = make_pool(PretendedCluster(), gpus=gpus)
    submit_one(pool)
    pool.poll(0.0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    pool.close()


def test_another_version_on_a_node_is_refused(monkeypatch):
    monkeypatch.setattr(ray_runner, "__version__", "0.0.7")
    pool = make_pool(PretendedCluster())
    submit_one(pool)
    with pytest.raises(SurefootError, match=f"has surefoot 0.0.7, and this is {__version__}; install the same"):
        pool.poll(0.0)
    pool.close()


def test_a_shared_folder_is_written_directly_and_must_be_seen_by_every_node(pretended):
    runs, _ = run_all(make_pool(PretendedCluster(), shared=True))
    assert [run.stage for run in runs] == ["done"] * 3
    assert not list(pretended.iterdir())
    assert not list(Path("out").glob(".ray-*"))
    pool = make_pool(PretendedCluster(), shared=True)
    submit_one(pool)
    pool._probe.unlink()
    with pytest.raises(SurefootError, match=r"does not see .*out; leave out --shared"):
        pool.poll(0.0)
    pool.close()


def test_a_shared_directory_that_a_lost_process_still_holds_is_waited_for():
    pool = make_pool(PretendedCluster(faults={1: Lost("gone")}), shared=True)
    directory = submit_one(pool)
    assert pool.poll(0.0)[0].lost == "gone"
    holder = RunDirectory(directory.path)
    holder.lock()
    submit_one(pool)
    pool.poll(0.0)
    assert not directory.manifest.exists()
    holder.unlock()
    next(iter(pool._busy.values())).due = 0.0
    pool.poll(0.0)
    assert directory.manifest.exists()
    pool.close()


def test_copies_of_killed_processes_are_removed_unless_their_run_is_still_saving(pretended):
    left, saving = pretended / f"{ray_runner.HOMES}left", pretended / f"{ray_runner.HOMES}saving"
    for home in (left, saving):
        (home / "run").mkdir(parents=True)
    other = pretended / f"{ray_runner.HOMES}other"
    (other / "thesis").mkdir(parents=True)
    run = RunDirectory(saving / "run")
    run.lock()
    for place in (left, saving, other):
        os.utime(place, (0, 0))
    new = pretended / f"{ray_runner.HOMES}new"  # another process has just made it, and will lock it next
    new.mkdir()
    home = ray_runner.Home()
    assert sorted(os.listdir(pretended)) == sorted([new.name, other.name, saving.name, home.path.name])
    os.utime(home.path, (0, 0))
    again = ray_runner.Home()
    assert home.path.exists()
    again.remove()
    home.remove()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--address moon", "'moon' is no address of a Ray cluster; write auto, HOST:PORT or ray://HOST:PORT"),
        ("--address 127.0.0.1:1", "there is no Ray cluster at 127.0.0.1:1"),
        ("--address ray://127.0.0.1:99999", "there is no Ray cluster at ray://127.0.0.1:99999"),
        ("--address local --cpus-per-run 0", "cpus_per_run=0 is too small"),
        ("--address local --gpus-per-run 1.5", "gpus_per_run=1.5 must be a whole number"),
        ("--address local --gpus-per-run nan", "gpus_per_run=nan must be a whole number"),
        ("--address local --gpus-per-run=-1", "gpus_per_run=-1 must be a whole number"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(words, says, monkeypatch, capsys):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: SimpleNamespace(origin="ray/__init__.py"))
    monkeypatch.setattr(ray_cluster, "RayCluster", None)  # a test must not start one
    assert main(["sweep", "--env", "CartPole-v1", "--on", "ray", *words.split()]) == 2
    assert says in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("found", [None, SimpleNamespace(origin=None)], ids=["nothing", "a folder"])
def test_without_ray_the_command_that_installs_it_is_shown(found, monkeypatch, capsys):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: found)
    assert main(["sweep", "--env", "CartPole-v1", "--on", "ray"]) == 2
    assert 'not installed: pip install "surefoot[ray]"' in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_command_that_continues_a_sweep_goes_to_the_same_place(monkeypatch, capsys):
    monkeypatch.setattr(ray_cluster, "require_ray", lambda: None)
    monkeypatch.setattr(ray_cluster, "check_address", lambda address: None)
    monkeypatch.setattr(ray_cluster, "RayCluster", lambda address: PretendedCluster())
    monkeypatch.setattr(PretendedRun, "code", 1)
    words = ["--env", "CartPole-v1", "--seeds=0", "--total-steps=2000", "--out=my out"]
    assert main(["sweep", *words, "--on=ray", "--address=ray://a:1", "--cpus-per-run=2", "--shared"]) == 1
    said = capsys.readouterr().out
    assert "to continue: surefoot sweep 'my out' --on=ray --cpus-per-run=2 --address=ray://a:1 --shared" in said
    assert "1 run in my out, on a Ray cluster" in said
