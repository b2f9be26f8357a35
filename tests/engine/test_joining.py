"""A process that cannot join the others says why, and what all of them find is said once."""

import socket
import threading

import pytest
import torch
from torch.distributed import TCPStore

from surefoot.engine import group
from surefoot.engine.group import check_equal, joined, local_device
from surefoot.engine.torchrun import may_speak
from surefoot.errors import EnvError, PeerError, UsageError


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_port_in_use(second_of_two):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        second_of_two.setenv("MASTER_PORT", str(port))
        second_of_two.setenv("RANK", "0")  # which offers the place to meet, without torchrun
        with pytest.raises(UsageError, match=f"port 127.0.0.1:{port} is in use by another program; set MASTER_PORT"):
            joined().__enter__()


def test_another_program_at_the_port_is_not_waited_for_for_ever(second_of_two):
    second_of_two.setattr(group, "SLOW", 1.0)
    second_of_two.setenv("SUREFOOT_RANK_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        second_of_two.setenv("MASTER_PORT", str(silent.getsockname()[1]))
        with pytest.raises(PeerError, match="another program uses its port"):
            joined().__enter__()
    for left in threading.enumerate():
        if left.name == "surefoot-store":
            left.join(60)  # PyTorch prints why


def test_a_variable_that_is_missing_or_no_number(second_of_two):
    second_of_two.delenv("MASTER_PORT", raising=False)
    with pytest.raises(UsageError, match="MASTER_PORT expected, but not set"):
        joined().__enter__()
    second_of_two.setenv("WORLD_SIZE", "two")
    with pytest.raises(UsageError, match="'two'"):
        joined().__enter__()


def test_what_several_find_is_said_by_the_first_of_them(second_of_two):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    second_of_two.setenv("MASTER_PORT", str(store.port))
    second_of_two.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert may_speak(UsageError("num_envs=3 is odd"))
    assert not may_speak(UsageError("num_envs=3 is odd"))
    assert may_speak(UsageError("another mistake, on this machine only"))
    assert may_speak(EnvError("step of env 0 raised"))
    assert not may_speak(EnvError("step of env 1 raised"))  # most likely for the same reason
    second_of_two.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert may_speak(UsageError("num_envs=3 is odd"))  # after a restart it is news again


def test_without_a_store_the_first_process_speaks(second_of_two):
    assert not may_speak(UsageError("wrong"))
    assert may_speak(RuntimeError("what only this process may know"))
    assert not may_speak(PeerError("lost", speaks=False))
    second_of_two.setenv("RANK", "0")
    assert may_speak(UsageError("wrong"))


def test_more_processes_than_gpus_share_them(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert local_device(cuda, "as asked") == (torch.device("cuda", 0), "as asked, 2 processes on each")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_device(cuda, "as asked") == (torch.device("cuda", 1), "as asked")
    assert local_device(torch.device("cpu"), "small") == (torch.device("cpu"), "small")


def test_processes_that_bring_different_numbers_of_envs():
    class Group:
        size, index = 2, 0

        def gather(self, value):
            return [value, 8]

    check_equal(Group(), 8)
    with pytest.raises(UsageError, match="the same number of envs, but they have 4, 8"):
        check_equal(Group(), 4)
