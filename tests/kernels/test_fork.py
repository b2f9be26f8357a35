"""Kernels and PyTorch in a forked child, which has none of its parent's threads: it makes its own."""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

import surefoot
from surefoot.engine import openmp
from surefoot.engine.torch_threads import torch_threads
from surefoot.errors import UsageError
from tests.kernels.every_call import CALLS, EveryCall

# Forking beside threads is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
PATIENCE = 120.0  # seconds, on a busy machine; what hangs hangs forever


def in_child(work):
    """What `work()` returns in a forked child, as JSON; a child that hangs or dies is a failure."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(json.dumps(work()))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            found, end = b"", time.monotonic() + PATIENCE
            while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                part = os.read(pipe.fileno(), 2**20)
                found += part
                if not part:
                    break
            else:
                pytest.fail("the child hangs")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert found, "the child died"
    return json.loads(found)


def differing(calls, expected):
    """The calls whose answers are not those expected, each made twice, in two orders."""
    names = [*CALLS, *reversed(CALLS)]
    return [name for name in names if getattr(calls, name)() != expected[name]]


@pytest.fixture(params=["none", "gru", "lstm"], scope="module")
def memory(request):
    return request.param


@pytest.fixture(scope="module")
def expected(memory):
    return EveryCall(memory, threads=1).every()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("last", CALLS)
def test_a_child_makes_any_call_after_any_of_its_parent(memory, expected, last):
    calls = EveryCall(memory)
    getattr(calls, last)()
    assert in_child(lambda: differing(calls, expected)) == []
    assert differing(calls, expected) == []


def test_a_grandchild_does_too(memory, expected):
    calls = EveryCall(memory)
    calls.epochs()

    def child():
        calls.gradient()
        return in_child(lambda: differing(calls, expected)), differing(calls, expected), calls.net.threads

    assert in_child(child) == [[], [], 2]
    assert in_child(lambda: in_child(lambda: differing(calls, expected))) == []  # its parent makes no call


@pytest.mark.sampled(1)
def test_networks_end_in_a_child_as_they_do_elsewhere(memory, expected):
    calls = [EveryCall(memory) for _ in range(3)]
    calls[0].values()
    calls[1].epochs()  # the third one has made no call at all

    def child():
        calls[1].values()
        calls.clear()
        gc.collect()
        return differing(EveryCall(memory), expected)

    assert in_child(child) == []
    assert [differing(one, expected) for one in calls] == [[], [], []]


@pytest.mark.sampled(1)
def test_a_fork_in_the_middle_of_another_threads_calls(memory, expected):
    """Locks, rounds and buffers of the network are in any state."""
    calls, over = EveryCall(memory), threading.Event()

    def busy():
        while not over.is_set():
            calls.every()

    thread = threading.Thread(target=busy)
    thread.start()
    try:

        def child():
            found = differing(calls, expected)
            calls.__dict__.clear()
            gc.collect()
            return found

        for _ in range(4):
            assert in_child(child) == []
    finally:
        over.set()
        thread.join()


def short_run(where, engine):
    settings = {"total_steps": 256, "num_envs": 4, "rollout_length": 32, "num_epochs": 1, "num_minibatches": 1}
    settings |= {"seed": 0, "engine": engine, "threads": 2, "eval_episodes": 1, "log_every": 1, "progress": False}
    run = surefoot.train("CartPole-v1", "ppo", run_dir=where, **settings)
    return (run.path / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_whole_runs_in_forked_workers(engine, tmp_path):
    """As a user's `ProcessPoolExecutor` starts them on Linux. PyTorch's threads are OpenMP's."""
    with torch_threads(2):
        torch.randn(2_000_000).exp().sum()  # as a user's own work may have done
    expected = short_run(tmp_path / "parent", engine)
    executor = ProcessPoolExecutor(1, mp_context=get_context("fork"))
    try:
        futures = [executor.submit(short_run, tmp_path / str(n), engine) for n in range(2)]
        found = [future.result(timeout=PATIENCE) for future in futures]
    finally:
        for process in list(executor._processes.values()):
            process.kill()
        executor.shutdown(wait=False, cancel_futures=True)
    assert found == [expected] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="other runtimes know about forks")
def test_threads_of_torch_that_cannot_be_let_go_are_refused_in_a_child(monkeypatch):
    monkeypatch.setattr(openmp, "_release", lambda: False)

    def child():
        with torch_threads(1):
            served = float(torch.ones(3).sum())
        with pytest.raises(UsageError, match=r'get_context\("spawn"\)'), torch_threads(2):
            pass
        return served, openmp.can_share()

    assert in_child(child) == [3.0, False]
    with torch_threads(2):
        assert torch.get_num_threads() == 2


OWN_WORK = """
import multiprocessing, os, torch
def work(number):
    torch.set_num_threads(number)
    return float(torch.ones(2_000_000).exp().sum())
def load():
    import surefoot
    agent = surefoot.load("RUN")
    agent.predict(agent.policy.layout.space.sample())
    if os.fork() == 0:  # releasing threads that do not exist would hang, too
        os._exit(0)
    os.wait()
def plain_fork():
    if os.fork() == 0:
        child()
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
def child():
    from surefoot.engine.torch_threads import torch_threads
    for number in (1, 2):
        with torch_threads(number):
            work(number)
{before}
work(2)
process = multiprocessing.get_context("fork").Process(target=TARGET)
process.start()
process.join(PATIENCE)
print(process.exitcode)
process.kill()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other runtimes know about forks")
@pytest.mark.parametrize("target", ["child", "plain_fork", "load"])
@pytest.mark.parametrize("before", ["import surefoot", ""])
def test_threads_that_a_users_own_work_started_do_not_hang_a_child(before, target):
    """Nothing of ours has run before the fork; at most, surefoot was imported."""
    run = next((Path(__file__).parents[1] / "fixtures").glob("runs-*/*/manifest.json")).parent
    script = OWN_WORK.format(before=before).replace("PATIENCE", str(PATIENCE))
    script = script.replace("TARGET", target).replace("RUN", str(run))
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=2 * PATIENCE, env=own)
    if before or target == "load":
        assert done.stdout == "0\n", done.stderr
    else:  # too late to release the threads
        assert done.stdout == "1\n", done.stderr
        assert 'get_context("spawn")' in done.stderr
