"""Where a run may live: held by another process, on a disk that cannot be written, nowhere, under an odd name."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import surefoot
from surefoot.cli.main import main
from tests.faults.disks import make_read_only, own_mounts, possible
from tests.faults.runs import cli, command, copy, leftovers, newest, opened, same
from tests.faults.test_signals import NOTICE, stuck_in

# Two processes on one run


def test_a_second_process_is_told_who_has_the_run_and_a_kill_frees_it(nursery, whole, tmp_path):
    path = tmp_path / "run"
    holder = nursery.start(stuck_in, phase="update", words=command(path), hang="python")
    holder.await_file(NOTICE)
    second = nursery.run(cli, words=["resume", str(path)]).ended(3)
    assert f"{path} is in use by pid {holder.pid} on {socket.gethostname()}" in second.err
    nursery.run(cli, words=command(path)).ended(2)
    assert opened(path).directory.read_status()["state"] == "running"
    surefoot.load(path)  # reading needs no lock
    assert main(["eval", str(path), "--episodes=1"]) == 0
    holder.send(signal.SIGKILL)
    holder.wait().ended(-signal.SIGKILL)
    assert opened(path).directory.read_status()["state"] == "interrupted"
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


@pytest.mark.slow
def test_of_processes_that_start_at_once_in_one_directory_one_trains_and_the_others_leave(nursery, whole, tmp_path):
    path = tmp_path / "run"
    children = [nursery.start(cli, words=command(path)) for _ in range(4)]
    codes = sorted(child.wait().code for child in children)
    assert codes[0] == 0
    assert set(codes[1:]) <= {2, 3}, codes
    same(opened(path), whole)


@pytest.mark.slow
def test_of_processes_that_resume_at_once_one_goes_on_and_the_others_leave(nursery, whole, tmp_path):
    path = tmp_path / "run"
    first = nursery.start(stuck_in, phase="update", words=command(path), hang="python")
    first.await_file(NOTICE)
    first.send(signal.SIGKILL)
    first.wait()
    children = [nursery.start(cli, words=["resume", str(path)]) for _ in range(4)]
    codes = [child.wait().code for child in children]
    assert set(codes) <= {0, 3}
    assert 0 in codes
    same(opened(path), whole)


@pytest.mark.slow
def test_a_process_that_an_env_forked_does_not_hold_the_run_after_a_kill(nursery, whole, tmp_path):
    """The lock is the kernel's; it must not live on in somebody's child."""
    path = tmp_path / "run"
    holder = nursery.start(stuck_with_a_child, words=command(path))
    holder.await_file(NOTICE)
    holder.send(signal.SIGKILL)
    holder.wait()
    try:
        nursery.run(cli, words=["resume", str(path)]).ended(0)
        same(opened(path), whole)
    finally:
        for pid in nursery.orphans():
            os.kill(pid, signal.SIGKILL)


def stuck_with_a_child(words):
    """In a child: the command line; its env starts a program that outlives it."""
    from tests.faults.test_signals import in_phase

    def start():
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        NOTICE.touch()
        time.sleep(60)

    in_phase("update", start)
    return main(words)


# A disk that cannot be written


@pytest.fixture
def _mounts(nursery):
    if nursery.run(possible).code:
        pytest.skip("a disk of one's own needs root or user namespaces")


def on_a_read_only_disk(words):
    """In a child: the command line, with the directory `stone` as it is and no other way."""
    own_mounts()
    make_read_only(Path("stone"))
    return main(words)


ENV = """
from pathlib import Path
import gymnasium as gym
class Env(gym.Wrapper):
    def __init__(self):
        Path("an env was made").touch()
        super().__init__(gym.make("CartPole-v1"))
"""


@pytest.mark.usefixtures("_mounts")
def test_training_on_a_disk_that_cannot_be_written_fails_before_any_env_starts(nursery):
    Path("stone").mkdir()
    Path("mine.py").write_text(ENV, encoding="utf-8")
    words = command("stone/run", env="mine.py:Env")
    child = nursery.run(on_a_read_only_disk, words=words).ended(2)
    assert "cannot write the run directory stone/run: Read-only file system" in child.err
    assert not Path("an env was made").exists()


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("_mounts")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["resume", "stone/run", "--total-steps=2k"], 2, "stone/run: Read-only file system"),
        (["eval", "stone/run", "--episodes=1"], 0, ""),
        (["video", "stone/run", "--max-steps=2", "--out=a.mp4"], 0, ""),
        (["video", "stone/run", "--max-steps=2"], 1, "Read-only file system"),
        (["train", "--like=stone/run", "--total-steps=32", "--run-dir=new"], 0, ""),
        (["train", "CartPole-v1", "--init-from=stone/run", *command()[2:], "--run-dir=new"], 0, ""),
        (["train", "CartPole-v1", "--run-dir=stone/run"], 2, "already holds a run"),
    ],
    ids=["resume", "eval", "video elsewhere", "video", "like", "init-from", "train"],
)
def test_a_run_on_a_disk_that_cannot_be_written_can_be_read(nursery, whole, words, code, said):
    copy(whole, Path("stone/run"))
    child = nursery.run(on_a_read_only_disk, words=words).ended(code)
    assert said in child.err
    assert "Traceback" not in child.err


# Nowhere


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "nowhere"],
        ["eval", "nowhere"],
        ["video", "nowhere"],
        ["train", "--like=nowhere"],
        ["train", "--config=nowhere"],
        ["train", "CartPole-v1", "--init-from=nowhere"],
        ["resume", "a file"],
        ["resume", "an empty folder"],
        ["resume", ""],
        ["train", "CartPole-v1", "--run-dir=a file"],
        ["train", "CartPole-v1", "--run-dir=a file/run"],
        ["train", "CartPole-v1", "--run-dir=/proc/run"],
        ["train", "CartPole-v1", "--run-dir=" + "n" * 300],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_place_that_does_not_exist_is_an_error_of_ours(words, capsys):
    Path("a file").touch()
    Path("an empty folder").mkdir()
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("surefoot: ")


@pytest.mark.parametrize("gone", ["config.toml", "manifest.json", "checkpoints", "metrics.jsonl", "status.json"])
@pytest.mark.parametrize("command", ["resume", "eval", "list"])
def test_a_run_with_a_part_missing_is_refused_or_works(whole, capsys, gone, command):
    """It does not train for hours to find at the end that there is no directory for its checkpoints."""
    run = copy(whole, Path("runs/run"))
    target = run.path / gone
    target.rename(run.path / "elsewhere")
    code = main(["list", "runs"] if command == "list" else [command, "runs/run"])
    assert code in (0, 2, 4)
    if command == "resume" and gone in ("config.toml", "manifest.json", "metrics.jsonl"):
        assert code in (2, 4)
    if command == "eval" and gone == "checkpoints":
        assert code == 4


# Odd names


NAMES = [
    "mit Leerzeichen",
    "ünï→😀",
    "-dash",
    "--total-steps",
    "two\nlines",
    'it\'s "$HOME" `x` \\ * ; & | ~ #',
    "~",
    "latest",
]


def pasted(text):
    """What a shell makes of a command that was printed and pasted: the words after `surefoot`."""
    stub = Path("bin/surefoot")
    stub.parent.mkdir(exist_ok=True)
    stub.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n', encoding="utf-8")
    stub.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", text],
        capture_output=True,
        check=True,
        env={**os.environ, "PATH": f"{stub.parent.absolute()}:/bin"},
    )
    return done.stdout.decode().split("\0")[:-1]


def signalled_once(words):
    """In a child: the command line, asked to stop in the middle."""
    from tests.faults.test_signals import signalled_in

    return signalled_in("update", signal.SIGTERM, words)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_any_name_is_trained_resumed_evaluated_and_listed(nursery, whole, capsys, name):
    path = Path("runs") / "x" / name if name == "latest" else Path(name)
    child = nursery.run(signalled_once, words=command(path)).ended(143)
    assert (path / "manifest.json").exists()
    printed = child.err.partition("To continue:\n")[2].rstrip("\n")
    words = pasted(printed)
    assert words[0] == "resume"
    nursery.run(cli, words=words).ended(0)
    same(opened(path), whole)
    assert leftovers(path) == []
    nursery.run(cli, words=["eval", "--episodes=1", "--", str(path)]).ended(0)
    video = nursery.run(cli, words=["video", "--max-steps=2", "--", str(path)]).ended(0)
    assert newest(opened(path)).name in video.out
    nursery.run(cli, words=["train", f"--like={path}", "--total-steps=32", "--run-dir=new"]).ended(0)
    nursery.run(cli, words=["list", "runs"]).ended(0)


@pytest.mark.slow
def test_the_next_command_that_a_finished_run_prints_can_be_pasted(nursery, whole):
    for name in ("-dash", "it's me"):
        child = nursery.run(cli, words=command(Path(name), total_steps=32, eval_every=None)).ended(0)
        (line,) = [line for line in child.out.splitlines() if line.startswith("next:")]
        words = pasted(line.removeprefix("next:").strip())
        assert words[0] == "video"
        nursery.run(cli, words=words).ended(0)


@pytest.mark.slow
def test_a_real_process_from_a_real_shell_is_stopped_and_goes_on(whole, tmp_path):
    """No nursery: the program as it is installed, Ctrl-C to its process group, its last line pasted."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    path = tmp_path / "a run"
    text = shlex.join(["surefoot", *command(path, total_steps=10**7)])
    process = subprocess.Popen(
        ["sh", "-c", f"exec {text}"],
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 120
    while not (path / "checkpoints" / "LATEST").exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    step = int(newest(opened(path)).name)
    last = said.splitlines()[-1]
    assert last == f"surefoot resume '{path}'"
    subprocess.run(
        ["sh", "-c", f"{last} --max-time 2s"], env=environment, stdout=subprocess.DEVNULL, check=True, timeout=120
    )
    assert int(newest(opened(path)).name) > step
