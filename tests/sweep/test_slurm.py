"""A pool of Slurm jobs, with commands that only pretend to be Slurm's. `test_slurm_cluster.py` has the real ones."""

import os
import pickle
import signal
import stat
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from surefoot.cli import slurm_job
from surefoot.cli.in_process import exit_code_of
from surefoot.cli.main import main
from surefoot.cli.slurm_job import SlurmRun
from surefoot.errors import SurefootError, UsageError
from surefoot.runs.files import write_json
from surefoot.sweep import slurm_pool
from surefoot.sweep.pool import Ended, Work
from surefoot.sweep.slurm_pool import RETRIES, SlurmPool
from surefoot.sweep.slurm_submit import Resources, label, mark_of, parse_options

pytest.importorskip("submitit")
COMMANDS = {
    "sbatch": """
if [ -e refuse ]; then echo "sbatch: error: $(cat refuse)" >&2; exit 1; fi
n=$(( $(cat count 2>/dev/null || echo 0) + 1 )); echo $n > count
cp "$1" "script$n"; echo "Submitted batch job $n"
""",
    "squeue": """
if [ -e silent ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
cat queue 2>/dev/null || true
""",
    "scancel": 'echo "$@" >> cancelled\n',
    "scontrol": 'echo "$@" >> controlled\n',
    "srun": "",
}


@pytest.fixture(autouse=True)
def slurm(monkeypatch):
    """Slurm's commands. The queue is a file; each job's script, and what was cancelled, are files as well."""
    for name, text in COMMANDS.items():
        command = Path("bin") / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/bash\nset -e\ncd {Path.cwd()}\n{text}", encoding="utf-8")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{Path('bin').absolute()}:{os.environ['PATH']}")


def queue(*jobs):
    """(id, state, wait status, name) of every job."""
    rows = [f"{id:<20}{state:<20}{status:<20}{name:<100}\n" for id, state, status, name in jobs]
    Path("queue").write_text("".join(rows), encoding="utf-8")


def a_pool(**options):
    return SlurmPool(2, Path("out"), SlurmRun, Resources(**options), look=0.0)


def a_work(name="env/ppo/s0"):
    path = Path("out", name).absolute()
    return Work(name, ("train", "CartPole-v1", f"--run-dir={path}"), path / "output.txt", ("resume", str(path)))


def run_at(work, state, step=None):
    """What the run has left in its directory."""
    folder = work.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "manifest.json", {})
    write_json(folder / "status.json", {"state": state})
    if step is not None:
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
        (folder / "checkpoints" / "LATEST").write_text(f"{step}\n", encoding="utf-8")


def submissions():
    return int(Path("count").read_text(encoding="utf-8")) if Path("count").exists() else 0


def test_a_job_asks_for_what_its_run_needs_and_continues_it_when_slurm_queues_it_again():
    pool, work = a_pool(cpus=3, gpus=1, options=parse_options(["time=2:00:00", "--mem=8G", "exclusive"])), a_work()
    pool.submit(work)
    script = Path("script1").read_text(encoding="utf-8")
    asked = ("cpus-per-task=3", "gpus-per-node=1", "time=2:00:00", "mem=8G", "exclusive", "requeue", "signal=USR2@90")
    for option in (*asked, f"job-name={label(Path('out'), work.name)}"):
        assert f"#SBATCH --{option}\n" in script
    assert "export OMP_NUM_THREADS=1" in script
    assert "time" not in Path("script1").read_text(encoding="utf-8").replace("time=2:00:00", "")
    (pickled,) = Path("out/.slurm").glob("1_submitted.pkl")
    assert pickle.loads(pickled.read_bytes()).function == SlurmRun(work, Path("out/.slurm").absolute())  # noqa: S301
    queue(("1", "RUNNING", 0, "x"))
    assert pool.poll(0.0) == []
    queue(("1", "COMPLETED", 0, "x"))
    assert pool.poll(0.0) == [Ended(work.name, 0)]
    pool.close()
    assert list(Path("out/.slurm").iterdir()) == []


@pytest.mark.parametrize(
    ("state", "status", "left", "code", "said"),
    [
        ("FAILED", 2 << 8, "failed", 2, ""),  # the run's own end
        ("FAILED", 139 << 8, "running", -11, ""),  # srun: killed by SIGSEGV
        ("FAILED", 140 << 8, "unknown", 1, "its time limit leaves no time"),  # SIGUSR2 while it was starting
        ("CANCELLED", 0, "interrupted", 1, "Slurm job 1: it was cancelled"),
        ("OUT_OF_MEMORY", 0, "running", 1, "ask for more: --slurm mem=16G"),
        ("TIMEOUT", 0, "done", 0, ""),  # it ended in time
        ("GONE", 0, "done", 0, ""),  # forgotten by Slurm
        ("GONE", 0, "failed", 1, ""),
    ],
)
def test_the_end_of_a_job_is_the_end_of_its_run(state, status, left, code, said):
    pool, work = a_pool(), a_work()
    pool.submit(work)
    run_at(work, left)
    work.output.write_text("hello\n", encoding="utf-8")
    queue(*([(1, state, status, "x")] if state != "GONE" else []))
    assert pool.poll(0.0) == [Ended(work.name, code)]
    assert said in work.output.read_text(encoding="utf-8")
    assert submissions() == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("state", "status"), [("TIMEOUT", 0), ("NODE_FAIL", 0), ("PREEMPTED", 0), ("FAILED", 143 << 8), ("GONE", 0)]
)
def test_a_job_that_was_lost_is_submitted_again_but_not_for_ever(state, status):
    pool, work = a_pool(), a_work()
    pool.submit(work)
    run_at(work, "interrupted")

    def lose(number):
        queue(*([(number, state, status, "x")] if state != "GONE" else []))
        return pool.poll(0.0)

    for number in range(1, RETRIES + 1):
        assert lose(number) == []
        assert submissions() == number + 1
    run_at(work, "interrupted", step=128)  # a new checkpoint: it was worth it
    for number in range(RETRIES + 1, 2 * RETRIES + 2):
        assert lose(number) == []
    assert lose(2 * RETRIES + 2) == [Ended(work.name, 1)]
    assert "lost 4 times without a new checkpoint" in work.output.read_text(encoding="utf-8")


def test_a_job_that_never_got_to_its_run_is_explained_by_its_log():
    pool, work = a_pool(), a_work()
    pool.submit(work)
    Path("out/.slurm/1_0_log.err").write_text("no such python\nsrun: error: task 0: exit 1\n", encoding="utf-8")
    queue((1, "FAILED", 1 << 8, "x"))
    assert pool.poll(0.0) == [Ended(work.name, 1)]
    assert "1_0_log.err ends with: no such python" in work.output.read_text(encoding="utf-8")


def test_a_later_sweep_waits_for_the_jobs_of_one_that_was_killed(capsys):
    one, other = a_work("env/ppo/s0"), a_work("env/ppo/s1")
    a_pool().submit(one)
    queue((1, "PENDING", 0, label(Path("out"), one.name)), (9, "RUNNING", 0, label(Path("elsewhere"), other.name)))
    pool = a_pool()
    pool.submit(one)
    assert submissions() == 1
    pool.submit(other)  # a run of this name in another folder is not ours
    assert submissions() == 2
    pool.stop()
    assert Path("cancelled").read_text(encoding="utf-8").splitlines()[0] == "--quiet --state=PENDING 1 2"


def test_the_runs_of_queued_jobs_are_not_started_elsewhere(capsys):
    words = ["sweep", "--env", "CartPole-v1", "--seeds=0", "--out=out"]
    a_pool()
    queue((7, "RUNNING", 0, f"a{mark_of(Path('out'))}b"))
    assert main(words) == 2
    assert "wait for them with --on slurm, or cancel them: scancel 7" in capsys.readouterr().err
    Path("silent").touch()
    assert main(words) == 1
    assert "if no job is left, remove out/.slurm" in capsys.readouterr().err


def test_a_refused_job_is_submitted_later_and_a_wrong_option_is_said_at_once():
    pool, one, other = a_pool(), a_work("env/ppo/s0"), a_work("env/ppo/s1")
    Path("refuse").write_text("invalid partition specified: moon", encoding="utf-8")
    with pytest.raises(UsageError, match="the job of env/ppo/s0: invalid partition specified: moon"):
        pool.submit(one)
    pool = a_pool()
    Path("refuse").unlink()
    pool.submit(one)
    Path("refuse").write_text("QOSMaxSubmitJobPerUserLimit", encoding="utf-8")
    pool.submit(other)
    queue((1, "RUNNING", 0, "x"))
    assert pool.poll(0.0) == []
    Path("refuse").unlink()
    assert pool.poll(0.0) == []
    assert submissions() == 2


def test_a_job_whose_submission_was_not_answered_is_found():
    pool, one, other = a_pool(), a_work("env/ppo/s0"), a_work("env/ppo/s1")
    pool.submit(one)
    Path("refuse").write_text("Socket timed out on send/recv operation", encoding="utf-8")
    pool.submit(other)
    Path("refuse").unlink()
    queue((1, "RUNNING", 0, "x"), (5, "PENDING", 0, label(Path("out"), other.name)))
    assert pool.poll(0.0) == []
    assert submissions() == 1
    queue((1, "RUNNING", 0, "x"), (5, "COMPLETED", 0, label(Path("out"), other.name)))
    assert pool.poll(0.0) == [Ended(other.name, 0)]


def test_stopping_asks_first_and_cancels_last():
    pool, one, other = a_pool(), a_work("env/ppo/s0"), a_work("env/ppo/s1")
    pool.submit(one)
    Path("refuse").write_text("busy", encoding="utf-8")
    pool.submit(other)
    pool.stop()
    told = Path("cancelled").read_text(encoding="utf-8").splitlines()
    assert told[0] == "--quiet --state=PENDING 1"
    assert told[-1] == "--quiet --state=RUNNING --signal=TERM 1"
    assert Path("out/.slurm/1.stop").exists()
    queue((1, "RUNNING", 0, "x"))
    assert pool.poll(0.0) == [Ended(other.name, 143)]  # it never started
    pool.stop(at_once=True)
    assert Path("cancelled").read_text(encoding="utf-8").splitlines()[-1] == "--quiet 1"
    queue((1, "CANCELLED", 0, "x"))
    assert pool.poll(0.0) == [Ended(one.name, 143)]
    pool.close()
    assert not Path("out/.slurm/1.stop").exists()


def test_a_controller_that_restarts_is_waited_for_but_not_for_ever(monkeypatch):
    pool = a_pool()
    pool.submit(a_work())
    Path("silent").touch()
    assert pool.poll(0.0) == []
    monkeypatch.setattr(slurm_pool, "SILENCE", 0.0)
    with pytest.raises(SurefootError, match=r"Unable to contact slurm controller; the jobs go on\. Run the same"):
        pool.poll(0.0)


def test_a_sweep_inside_a_job_does_not_pass_its_own_options_on(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_CONF", "slurm.conf")
    Path("bin/sbatch").write_text(f"#!/bin/bash\nenv > {Path('env').absolute()}\necho Submitted batch job 1\n", "utf-8")
    a_pool().submit(a_work())
    names = {line.partition("=")[0] for line in Path("env").read_text(encoding="utf-8").splitlines()}
    assert "SLURM_CONF" in names
    assert "SLURM_JOB_ID" not in names
    assert os.environ["SLURM_JOB_ID"] == "77"


@pytest.fixture
def in_a_job(monkeypatch):
    """The process of a job, as submitit leaves it; a run that ends with `codes`, and the words that it was given."""
    given, codes = [], []

    def command(words):
        given.append(words)
        code = codes.pop(0)
        return code() if callable(code) else code

    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(slurm_job, "exit_code_of", command)
    monkeypatch.setattr(slurm_job, "print_to", lambda path: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR2, lambda number, frame: None)  # submitit's
    yield given, codes
    for number, handler in before.items():
        signal.signal(number, handler)


def job_of(work):
    with pytest.raises(SystemExit) as left:
        SlurmRun(work, Path("out/.slurm").absolute())()
    return left.value.code


def test_a_job_starts_its_run_continues_it_or_finds_it_done(in_a_job):
    given, codes = in_a_job
    work = a_work()
    codes += [1, 0]
    assert job_of(work) == 1
    run_at(work, "interrupted")
    assert job_of(work) == 0
    assert given == [work.words, work.again]
    run_at(work, "done")
    assert job_of(work) == 0
    assert len(given) == 2


class Slow(gym.Env):
    """Slurm's signal comes while it is made."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)

    def __init__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_while_envs_are_made_is_no_error_of_the_env(in_a_job, capsys):
    """Making, resetting and replaying envs may take minutes, before the run has handlers of its own."""
    given, codes = in_a_job
    work = a_work()
    codes.append(lambda: exit_code_of(["train", f"{__file__}:Slow", "--run-dir", "there"]))
    assert job_of(work) == 143
    assert given == [work.words]
    assert "interrupted before the first update" in capsys.readouterr().err


def test_a_job_whose_time_is_up_saves_and_queues_itself_again(in_a_job):
    _, codes = in_a_job
    work = a_work()

    def out_of_time():
        signal.signal(signal.SIGTERM, lambda number, frame: run_at(work, "interrupted", step=64))  # the run's own
        signal.raise_signal(signal.SIGUSR2)
        return 143

    codes.append(out_of_time)
    assert job_of(work) == 143
    assert Path("controlled").read_text(encoding="utf-8") == "requeue 12\n"


def test_a_time_limit_without_time_for_an_update_is_an_error(in_a_job, capsys):
    _, codes = in_a_job
    codes.append(lambda: signal.raise_signal(signal.SIGUSR2))  # before the run has handlers
    with pytest.raises(SystemExit, match="143"):
        SlurmRun(a_work(), Path("out/.slurm"))()

    def too_short():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.raise_signal(signal.SIGUSR2)
        return 143

    Path("out/.slurm").mkdir(parents=True)
    for _ in range(RETRIES):  # it may have been in an evaluation
        codes.append(too_short)
        assert job_of(a_work()) == 143
    codes.append(too_short)
    assert job_of(a_work()) == 1
    assert "raise it: --slurm time=" in capsys.readouterr().err
    assert len(Path("controlled").read_text(encoding="utf-8").splitlines()) == RETRIES


def test_a_job_waits_for_a_process_that_a_lost_node_has_left_behind(in_a_job, monkeypatch):
    _, codes = in_a_job
    monkeypatch.setattr(slurm_job, "ORPHAN", 0.6)
    codes += [3, 3, 0]
    assert job_of(a_work()) == 0
    monkeypatch.setattr(slurm_job, "ORPHAN", 0.0)
    codes.append(3)
    assert job_of(a_work()) == 3


def test_a_job_that_starts_while_the_sweep_stops_leaves_at_once(in_a_job):
    pool, work = a_pool(), a_work()
    pool.submit(work)
    Path("out/.slurm/12.stop").touch()
    assert job_of(work) == 143


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--slurm partition=gpu", "--slurm has no effect on this machine; use it with --on slurm"),
        ("--on slurm --slurm =x", "'=x' is not an option of sbatch; write it as KEY=VALUE"),
        ("--on slurm --slurm mem=", "'mem=' is not an option of sbatch"),
        ("--on slurm --slurm job_name=x", "job-name is not available: a sweep finds its jobs by their names"),
        ("--on slurm --slurm nodes=2", "each run of a sweep is one process on one node"),
        ("--on slurm --gpus-per-run 0.5", "gpus_per_run='0.5' is not a whole number"),
        ("--on slurm --cpus-per-run 0", "cpus_per_run=0 is too small"),
        ("--on slurm --out 100%", "% has a meaning there"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_submitted(words, message, capsys):
    assert main(["sweep", "--env", "CartPole-v1", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert not submissions()


def test_without_slurm_or_submitit_the_fix_is_named(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "nowhere")
    assert main(["sweep", "--env", "CartPole-v1", "--on", "slurm"]) == 2
    assert "needs Slurm's sbatch, srun, squeue, scancel; run it on a login node" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["sweep", "--env", "CartPole-v1", "--on", "slurm"]) == 2
    assert 'pip install "surefoot[slurm]"' in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_command_that_continues_says_where(monkeypatch, capsys):
    monkeypatch.setitem(SlurmPool.__init__.__kwdefaults__, "look", 0.0)
    queue((1, "FAILED", 256, "x"))
    words = ["--on", "slurm", "--slurm", "mem=8G", "--cpus-per-run", "2"]
    assert main(["sweep", "--env", "CartPole-v1", "--seeds=0", "--out=out", *words]) == 1
    assert "to continue: surefoot sweep out --on=slurm --cpus-per-run=2 --slurm=mem=8G" in capsys.readouterr().out


def test_a_cluster_that_does_not_answer_leaves_the_folder_to_other_places():
    """One line says why; a folder that has never had a job there is not kept from a local sweep."""
    said = "squeue: error: no host\nsqueue: fatal: no config"
    Path("bin/squeue").write_text(f"#!/bin/bash\necho '{said}' >&2; exit 1\n", encoding="utf-8")
    with pytest.raises(SurefootError) as raised:
        a_pool()
    assert str(raised.value) == "squeue failed: fatal: no config"
    assert not Path("out").exists()
