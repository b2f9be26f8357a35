"""A process of a run that is killed, stopped or hangs: the others end, name it, and print nothing else."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.training.test_ranks import SETTINGS, finished, start, until_trained, workers

HANGS = """import os
import time
import gymnasium as gym

class Hangs(gym.Wrapper):
    steps = 0

    def step(self, action):
        Hangs.steps += 1
        if os.environ["RANK"] == "1" and Hangs.steps > 300:
            time.sleep(10_000)
        return super().step(action)

def make():
    return Hangs(gym.make("CartPole-v1"))
"""
NOISE = ("Traceback", "[W", "[E", "torch/distributed", "pytorch.org")
pytestmark = pytest.mark.slow


def train(name, *words, env="CartPole-v1", timeout=60):
    return start("surefoot", "train", env, "--ranks", "2", *SETTINGS.split(), "--total-steps=1000000", *words,
                 "--run-dir", name, SUREFOOT_RANK_TIMEOUT=str(timeout))  # fmt: skip


def clean(said):
    assert not [line for line in said.splitlines() if any(noise in line for noise in NOISE)], said
    return said


def test_one_that_hangs_is_named_after_the_timeout():
    Path("hangs.py").write_text(HANGS, encoding="utf-8")
    said = clean(finished(train("hangs", env="hangs.py:make", timeout=20), 1, 400))
    assert re.search(r"no answer from process 1 of 2 \(pid \d+ on \S+\) for 20 s", said)


def test_the_first_one_may_be_the_one_that_is_stopped():
    process = train("stopped", timeout=20)
    until_trained(process)
    first = workers(process)[0]
    os.kill(first, signal.SIGSTOP)
    said = clean(finished(process, 1, 400))
    assert f"no answer from process 0 of 2 (pid {first} on " in said


def test_one_that_is_killed_is_named_with_its_signal():
    process = train("killed")
    until_trained(process)
    last = workers(process)[-1]
    os.kill(last, signal.SIGKILL)
    said = clean(finished(process, 1, 400))
    assert f"process 1 of 2 (pid {last}) was ended by SIGKILL" in said
    assert f"without a word from process 1 of 2 (pid {last} on " in said


def test_wrong_input_is_refused_once_and_without_noise():
    said = clean(finished(train("refused", env="missing.py:make"), 2, 400))
    assert said.count("missing.py") == 1, said
    Path("file").touch()
    said = clean(finished(train("file/below"), 2, 400))  # which only the first process knows
    assert said.count("file/below") == 1, said
