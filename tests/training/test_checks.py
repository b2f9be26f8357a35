"""What is refused before the first env step for want of memory."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.training import checks
from surefoot.training.checks import bytes_per_step, check_memory
from surefoot.training.config import resolve
from surefoot.training.trainer import Trainer
from tests.building import make_policy
from tests.tensor_vector_envs import Drift

GIB, GPU = 2**30, torch.device("cuda", 1)


@pytest.fixture
def machine(monkeypatch):
    """64 GiB of memory; of the second GPU's 24, 16 are free."""
    asked = []

    def free(device):
        asked.append(device)
        return 16 * GIB, 24 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    monkeypatch.setattr(checks.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}.get)
    return asked


def rollout(gib):
    """(length, num_envs, size) of a rollout that takes so many GiB once, and three times that in all."""
    return 1024, 1024, gib * 1024 - 48


def test_a_rollout_on_the_cpu_is_held_against_the_machine(machine):
    check_memory(*rollout(17))  # 51 of 64
    with pytest.raises(UsageError, match=r"1024 envs × 1024 steps needs about 54.0 GiB; this machine has 64.0. Lower"):
        check_memory(*rollout(18))
    assert machine == []


def test_a_rollout_on_a_gpu_is_held_against_what_is_free_there(machine):
    check_memory(*rollout(4), GPU, on_host=False)  # 12 of 16
    with pytest.raises(UsageError, match=r"needs about 15.0 GiB; free on cuda:1 are 16.0. Lower --num-envs"):
        check_memory(*rollout(5), GPU, on_host=False)
    assert machine == [GPU, GPU]


def test_envs_of_tensors_do_not_care_for_the_host(machine, monkeypatch):
    monkeypatch.setattr(checks.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1}.get)
    check_memory(*rollout(4), GPU, on_host=False)
    with pytest.raises(UsageError, match=r"needs about 4.0 GiB; this machine has 0.0"):  # collected here, once
        check_memory(*rollout(4), GPU)


def test_tensors_on_the_cpu_are_on_the_host(machine):
    with pytest.raises(UsageError, match="this machine has"):
        check_memory(*rollout(18), on_host=False)


def test_a_device_that_tells_nothing_is_trusted(machine):
    check_memory(*rollout(10**6), torch.device("mps"), on_host=False)


def test_images_are_stored_as_bytes():
    assert bytes_per_step(make_policy(), 8) == 4 * (4 + 3)  # four numbers, three logits
    images = spaces.Box(0, 255, (3, 36, 36), np.uint8)
    assert bytes_per_step(make_policy(observation_space=images), 8) == 3 * 36 * 36 + 4 * 3


def test_a_trainer_asks_for_the_device_of_its_rollouts(monkeypatch):
    asked = []
    monkeypatch.setattr("surefoot.training.trainer.check_memory", lambda *how, **more: asked.append((how, more)))
    config = resolve("Drift", preset="none", overrides={"num_envs": 4, "rollout_length": 16, "num_minibatches": 1})
    Trainer(config, 0, envs=Drift()).envs.close()
    config = resolve("CartPole-v1", preset="none", overrides={"num_envs": 4, "rollout_length": 16})
    Trainer(config, 0).envs.close()
    cpu = torch.device("cpu")
    assert asked == [((16, 4, 4 * (2 + 2), cpu), {"on_host": False}), ((16, 4, 4 * (4 + 2), cpu), {"on_host": True})]
