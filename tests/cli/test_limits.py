"""A process that may not have all the memory that it wants (`ulimit -v`): one line and exit code 1, never a crash."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from surefoot.cli import limits
from surefoot.cli.main import main

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="address space is not limited elsewhere")


def limited(kilobytes, *words):
    command = f'ulimit -v {kilobytes}; exec "$0" -m surefoot.cli.main "$@"'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_too_little_for_pytorch_is_said_before_it_is_loaded(tmp_path):
    done = limited(600_000, "train", "CartPole-v1", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 1
    assert "limited to 585 MiB (ulimit -v), but PyTorch alone needs about" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [680_000, 760_000, 840_000, 880_000, 920_000, 1_000_000])
def test_a_little_more_than_that_trains_or_says_what_is_missing(kilobytes, tmp_path):
    settings = ["--total-steps=256", "--num-envs=2", "--rollout-length=64", "--eval-episodes=1"]
    done = limited(kilobytes, "train", "CartPole-v1", "--run-dir", str(tmp_path / "run"), *settings)
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "raise the limit" in done.stderr
    assert "memory: ;" not in done.stderr


@pytest.mark.parametrize("words", [("train", "--help"), ("train", "CartPole-v1", "--dry-run"), ("explain", "ppo")])
def test_what_needs_no_pytorch_runs_all_the_same(words):
    done = limited(600_000, *words)
    assert done.returncode == 0, done.stderr


SWEEP = """
import json, os, resource, sys
import surefoot.training.life.launch
from surefoot.training.build import checks
from surefoot.cli.main import main
from tests.kernels.every_call import EveryCall

def room(megabytes):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20,) * 2)

def exit_code(work):
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def calls(megabytes):
    room(megabytes)
    for one in networks:  # a forked child makes them anew
        try:
            assert one.every() == one.expected
        except MemoryError:
            pass
        except RuntimeError as error:  # PyTorch's
            assert "can't allocate memory" in str(error), error
    return 0

def run(megabytes):
    checks.available_bytes = lambda device: None  # a forecast would refuse it before anything is allocated
    room(megabytes)
    words = ["--num-envs", "1024", "--rollout-length", "1024", "--run-dir", f"{sys.argv[1]}/{megabytes}"]
    words += ["--total-steps", "2M", "--engine", "native", "--seed", "0", "--threads", "1"]
    return main(["train", "CartPole-v1", *words])

networks = [EveryCall(memory, threads, steps=200) for memory in ("none", "lstm") for threads in (1, 4)]
for one in networks:  # which also loads what is loaded when it is first needed
    one.expected = one.every()
found = {str(megabytes): exit_code(lambda: calls(megabytes)) for megabytes in (0, 1, 2, 5, 10, 20, 50, 100, 200)}
print(json.dumps({"calls": found, "runs": [exit_code(lambda: run(megabytes)) for megabytes in (30, 60)]}))
"""


@pytest.mark.slow
def test_memory_that_ends_at_any_point_is_an_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # 127: the loader found no memory for a new thread's own data, and ends the process before any code of ours runs
    assert set(found["calls"].values()) <= {0, 127}, found
    assert found["runs"] == [1, 1], done.stderr
    assert done.stderr.count("surefoot: out of memory") == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: tried to get 8 bytes"),
            True,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("shapes differ"), False),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (ImportError("No module named 'wandb'"), False),
        (OSError(28, "No space left on device"), False),
    ],
    ids=str,
)
def test_whose_error_it_is(error, is_one):
    assert limits.is_out_of_memory(error) == is_one


def test_numpy_gets_the_threads_that_can_be_had(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr(limits, "startable", lambda wanted: wanted)
    limits.make_do_with_few_threads()
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    monkeypatch.setattr(limits, "startable", lambda wanted: wanted - 1)
    limits.make_do_with_few_threads()
    assert os.environ["OPENBLAS_NUM_THREADS"] == str(len(os.sched_getaffinity(0)) - 1)


def refused(*_, **__):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.parametrize(
    "words",
    [
        ("train", "CartPole-v1", "--workers", "2", "--num-envs", "2", "--total-steps", "4k", "--run-dir", "run"),
        ("sweep", "--env", "CartPole-v1", "--seeds", "0..1", "--total-steps", "4k", "--out", "runs"),
    ],
    ids=lambda words: words[0],
)
def test_a_process_that_cannot_be_started_is_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", refused)
    assert main([*words]) == 1
    said = capsys.readouterr().err
    assert "the system starts no more processes or threads here; raise the limit (ulimit -u" in said
    assert "Traceback" not in said


def test_a_launcher_without_threads_does_not_wait_for_them(monkeypatch, capsys):
    """torchrun's store would have none, and its agent would wait for the store for minutes."""
    monkeypatch.setattr(Thread, "start", lambda *_: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
    assert main(["train", "CartPole-v1", "--ranks", "2"]) == 1
    assert "starts no more processes or threads here" in capsys.readouterr().err
