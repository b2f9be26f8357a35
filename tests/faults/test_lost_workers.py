"""Workers that die or hang, and a parent that is killed: named errors, no orphans, nothing left in shared memory."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.envs.native_envs import NativeEpisodes
from surefoot.envs.workers import WorkerEnvs
from surefoot.envs.workers.process import Worker
from surefoot.envs.workers.rollouts import WorkerRollouts
from surefoot.envs.workers.supervisor import Supervisor
from surefoot.training.loop.selection import Selection
from surefoot.training.trainer import Trainer
from tests import worker_envs
from tests.faults.runs import cli, command, opened, same
from tests.faults.test_signals import before_call

WORKERS = {"workers": 2, "log_every": 320, "checkpoint_every": 320, "eval_every": 640}
WHERE = r"env 1 \(seed \d+, episode \d+, step \d+\)"
MARK = "SUREFOOT_TEST_MARK"


def marked_cli(words, mark):
    """In a child: the command line, whose workers can be told by their environment."""
    os.environ[MARK] = mark
    return main(words)


def marked(mark):
    """Living processes that were started with the mark: the workers, and whatever they started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                ours = f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if ours and not dead:
                found.append(int(entry.name))
    return found


def await_workers(child, mark, count=2):
    limit = time.monotonic() + 60.0
    while len(found := marked(mark)) < count:
        assert child.alive(), f"ended with {child.code}:\n{child.out}\n{child.err}"
        assert time.monotonic() < limit
        time.sleep(0.005)
    return found


def nothing_is_left(mark, nursery=None, within=30.0):
    """A process that is being torn down has no environment any more, but may still be seen among the orphans."""

    def left():
        return marked(mark) or (nursery.orphans() if nursery is not None else [])

    limit = time.monotonic() + within
    while (found := left()) and time.monotonic() < limit:
        time.sleep(0.01)
    return not found


def shared_files(pids):
    """Named shared memory that a process has open or mapped, which a kill would leave behind."""
    found = []
    for pid in pids:
        with suppress(OSError):  # it has just ended
            found += Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
            found += [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    return [line for line in found if "/dev/shm/" in line]


@pytest.mark.slow
def test_workers_change_no_byte_of_a_run(nursery, whole, tmp_path):
    nursery.run(cli, words=command(tmp_path / "run", workers=2)).ended(0)
    same(opened(tmp_path / "run"), whole)


def kill_in(phase, number, words, mark):
    """In a child: the command line, the second of whose workers gets a signal in a phase."""
    workers, trainers, inside = {}, [], []
    before_call(Trainer, "train", lambda: None, lambda trainer: trainers.append(trainer) or True)
    real_start, real_evaluate = Worker.start, Selection.run

    def start(worker):
        real_start(worker)
        workers[worker.number] = worker.process

    def evaluate(*args):
        inside.append(True)
        return real_evaluate(*args)

    def late(*_):
        return trainers and trainers[0].step >= 320

    Worker.start, Selection.run = start, evaluate
    owner, name, when = {
        "start": (Supervisor, "_meet", lambda *_: True),
        "reset": (WorkerEnvs, "reset", lambda *_: True),
        "step": (WorkerRollouts, "play", late),
        "evaluation": (NativeEpisodes, "step", lambda *_: inside and late()),
        "save": (WorkerEnvs, "state_dict", late),
        "shutdown": (WorkerEnvs, "close", lambda *_: True),
    }[phase]
    before_call(owner, name, lambda: os.kill(workers[1].pid, number), when)
    return marked_cli(words, mark)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["SIGKILL", "SIGSEGV"])
@pytest.mark.parametrize("phase", ["start", "reset", "step", "evaluation", "save", "shutdown"])
def test_a_worker_that_is_killed_is_named_and_the_run_goes_on_from_its_checkpoint(nursery, tmp_path, phase, number):
    path, mark = tmp_path / "run", f"{phase}-{number}"
    child = nursery.run(kill_in, phase=phase, number=number, words=command(path, **WORKERS), mark=mark)
    assert nothing_is_left(mark, nursery)
    if phase == "shutdown":  # it had nothing to lose any more
        child.ended(0)
        return
    child.ended(1)
    hint = r" \(did the machine run out of memory\?\)" if number == signal.SIGKILL else ""
    where = r"while starting; it had env 1$" if phase == "start" else rf"\w+ (its|two) \w+; it had {WHERE}$"
    said = child.err.splitlines()[0]
    assert re.search(rf"^surefoot: env worker 1 of CartPole-v1 was killed by {number.name}{hint} {where}", said), said
    if phase == "start":
        assert not path.exists()
        return
    assert opened(path).directory.read_status()["state"] == "failed"
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    assert opened(path).result["total_steps"] == 1600


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["reset", "step", "evaluation", "save"])
def test_a_worker_that_is_killed_is_replaced_in_any_phase(nursery, tmp_path, phase):
    path = tmp_path / "run"
    words = command(path, **WORKERS, restart_workers=1)
    child = nursery.run(kill_in, phase=phase, number=signal.SIGKILL, words=words, mark=phase).ended(0)
    assert len(re.findall(rf"env worker 1 of .* SIGKILL .*; it had {WHERE}; it is started again", child.out)) == 1
    assert opened(path).directory.read_status()["state"] == "done"
    assert nothing_is_left(phase, nursery)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_to_a_run_with_workers_leaves_none_and_it_goes_on_exactly(nursery, whole, tmp_path, number):
    path = tmp_path / "run"
    child = nursery.start(marked_cli, words=command(path, workers=2), mark=number.name)
    child.await_file(path / "metrics.jsonl")
    child.send(number)
    child.wait().ended(128 + number)
    assert nothing_is_left(number.name, nursery)
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


@pytest.mark.slow
def test_workers_killed_at_random_are_errors_and_no_hangs(nursery, tmp_path):
    dice, codes = random.Random(3), []
    for turn in range(6):
        path, mark = tmp_path / f"{turn}", f"random-{turn}"
        words = command(path, **WORKERS | {"total_steps": 8000})
        child = nursery.start(marked_cli, words=words, mark=mark)
        victim = dice.choice(await_workers(child, mark))
        time.sleep(dice.uniform(0.0, 1.2))
        with suppress(ProcessLookupError):  # the run was over
            os.kill(victim, dice.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
        codes.append(child.wait().code)
        assert codes[-1] in (0, 1), child.err
        if codes[-1]:
            assert re.match(
                r"surefoot: env worker [01] of CartPole-v1 was killed by SIG\w+.*; it had env [01]", child.err
            )
        assert nothing_is_left(mark)
    assert 1 in codes


@pytest.mark.slow
def test_a_parent_killed_at_random_leaves_nothing_and_the_run_changes_no_byte(nursery, whole, tmp_path):
    path, dice, kills = tmp_path / "run", random.Random(4), 0
    for turn in range(20):
        mark = f"parent-{turn}"
        words = ["resume", str(path)] if (path / "manifest.json").exists() else command(path, workers=2)
        child = nursery.start(marked_cli, words=words, mark=mark)
        if kills < 6:
            if turn % 2:  # else perhaps before there are workers, or while they start
                await_workers(child, mark)
            time.sleep(dice.uniform(0.0, 0.5))
            if child.alive():
                assert shared_files([child.pid, *marked(mark)]) == []
                child.send(signal.SIGKILL)
        kills += child.wait().code == -signal.SIGKILL
        assert nothing_is_left(mark, nursery)
        if child.code == 0:
            break
    assert kills >= 3
    same(opened(path), whole)


@pytest.mark.slow
def test_a_real_process_killed_from_outside_leaves_no_worker(tmp_path):
    program = Path(sys.executable).with_name("surefoot")
    with subprocess.Popen(
        [program, *command(tmp_path / "run", **WORKERS, total_steps=10**6)],
        env={**os.environ, MARK: "outside", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    ) as process:
        limit = time.monotonic() + 60
        while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < limit:
            time.sleep(0.02)
        assert len(marked("outside")) == 3
        process.kill()
    assert nothing_is_left("outside")


FATAL = f"{worker_envs.__file__}:Fatal"


def fatal(path, how, *words, **kwargs):
    changes = {"env": FATAL, "total_steps": 640, "eval_every": None, "eval_episodes": 0, "max_episode_steps": 50}
    given = json.dumps({"how": how, "at": 3, "episode": 2, **kwargs})
    return [*command(path, **WORKERS | changes), f"--env-kwargs={given}", *words]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "ended itself with exit code 7"),
        ("segv", "was killed by SIGSEGV"),
        ("abrt", "was killed by SIGABRT"),
        ("hang", r"did not answer within 1 s \(--env-timeout\)"),
        ("fork_and_die", "ended itself with exit code 9"),
    ],
)
def test_an_env_that_takes_its_worker_down_is_named(nursery, tmp_path, how, words):
    child = nursery.run(marked_cli, words=fatal(tmp_path / "run", how, "--env-timeout=1"), mark=how).ended(1)
    # Either worker may be the first: they do not wait for each other.
    where = r"in step of env (?P=number); it had env (?P=number) \(seed \d+, episode 2, step 3\)"
    assert re.match(rf"surefoot: env worker (?P<number>[01]) of .*Fatal {words} {where}", child.err), child.err
    if how in ("segv", "abrt", "hang"):
        assert 'worker_envs.py", line' in child.err  # where it was
    assert opened(tmp_path / "run").directory.read_status()["state"] == "failed"
    assert nothing_is_left(how)


@pytest.mark.slow
def test_a_worker_is_replaced_in_time_and_the_budget_holds(nursery, tmp_path):
    mark = str(tmp_path / "mark")
    words = fatal(tmp_path / "one", "kill", "--restart-workers=1", mark=mark)
    child = nursery.run(marked_cli, words=words, mark="one").ended(0)
    assert len(re.findall(r"env worker [01] of .* was killed by SIGKILL .*started again \(1 of 1\)", child.out)) == 1
    run = opened(tmp_path / "one")
    assert run.result["total_steps"] in range(600, 641)
    words = fatal(tmp_path / "more", "exit", "--restart-workers=2", always=True)
    child = nursery.run(marked_cli, words=words, mark="more", timeout=45.0).ended(1)  # no worker is waited for a minute
    assert child.out.count("it is started again") == 2
    assert "2 restarts (--restart-workers) were used up." in child.err
    assert nothing_is_left("one")
    assert nothing_is_left("more")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--algo=reinforce", "--workers=2", "--restart-workers=1"),
            "restart_workers cuts episodes short, but reinforce learns from whole ones; drop it",
        ),
        (("--restart-workers=1",), "restart_workers has no effect without workers; set --workers as well"),
        (("--workers=-1",), "workers=-1 is too small; it must be at least 0"),
        (("--workers=2.5",), "workers='2.5' is neither a whole number nor auto"),
        (("--workers=aut",), "workers='aut' is neither a whole number nor auto; did you mean 'auto'?"),
    ],
)
def test_settings_of_workers_that_mean_nothing_are_refused(capsys, words, said):
    assert main(["train", "CartPole-v1", "--preset=none", *words]) == 2
    assert capsys.readouterr().err == f"surefoot: {said}\n"
    assert not Path("runs").exists()


@pytest.mark.slow
def test_auto_writes_down_what_it_found_and_changes_no_byte(nursery, whole, tmp_path):
    path = tmp_path / "run"
    child = nursery.run(cli, words=command(path, workers="auto")).ended(0)
    (said,) = re.findall(r"^workers (\d) \(.*\)$", child.out, re.MULTILINE)
    assert f"workers = {said}" in (path / "config.toml").read_text()
    assert re.search(rf"workers {said} \(", (path / "log.txt").read_text())
    same(opened(path), whole)
    child = nursery.run(cli, words=["train", "--like", str(path), f"--run-dir={tmp_path / 'like'}"]).ended(0)
    assert not re.search(r"^workers \d", child.out, re.MULTILINE)


def test_ctrl_c_while_auto_measures_leaves_nothing(nursery, tmp_path):
    words = command(tmp_path / "run", workers="auto", env=f"{worker_envs.__file__}:Slow", eval_every=None)
    child = nursery.start(marked_cli, words=words, mark="measuring")
    await_workers(child, "measuring")
    time.sleep(0.5)
    child.send(signal.SIGINT)
    child.wait().ended(130)
    assert child.err == "surefoot: interrupted\n"
    assert not (tmp_path / "run").exists()
    assert nothing_is_left("measuring")
