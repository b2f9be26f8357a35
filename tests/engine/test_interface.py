"""The network interface for the exchange between processes is the one that leads to where they meet."""

import os
import sys

import pytest

from surefoot.engine import interface
from surefoot.engine.interface import VARIABLE, choose_interface

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere gloo chooses")


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")


def test_on_one_machine_it_is_the_loopback():
    choose_interface("localhost", several_machines=False)
    assert os.environ[VARIABLE] == "lo"


def test_a_name_that_leads_to_the_loopback_is_no_way_to_other_machines(monkeypatch):
    towards = {"localhost": "127.0.0.1", interface.ELSEWHERE: "10.0.0.7"}
    monkeypatch.setattr(interface, "_address_towards", towards.get)
    monkeypatch.setattr(interface, "_interface_with", {"10.0.0.7": "eth0", "127.0.0.1": "lo"}.get)
    choose_interface("localhost", several_machines=True)
    assert os.environ[VARIABLE] == "eth0"


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, "ib0")
    choose_interface("localhost", several_machines=False)
    assert os.environ[VARIABLE] == "ib0"


def test_a_host_that_is_unknown_leaves_the_choice_to_gloo(monkeypatch):
    monkeypatch.setattr(interface, "_address_towards", lambda host: None)
    choose_interface("nowhere.invalid", several_machines=True)
    assert not os.environ[VARIABLE]
