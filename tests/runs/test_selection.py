"""Several runs by paths, folders, globs, prefixes and `latest`."""

import shutil
from pathlib import Path

import pytest

from surefoot.errors import UsageError
from surefoot.runs.selection import select_runs
from tests.analysis.synthetic import make_family, make_run


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    return make_family(root, "ppo", [1, 2, 3]) + make_family(root, "vpg", [1, 2])


def names(*words):
    return ["/".join(run.path.parts[-2:]) for run in select_runs(words)]


PPO, VPG = ["ppo/s0", "ppo/s1", "ppo/s2"], ["vpg/s0", "vpg/s1"]


@pytest.mark.usefixtures("runs")
def test_every_way_to_name_runs():
    assert names("runs/CartPole-v1/ppo/s1") == names("CartPole-v1/ppo/s1") == ["ppo/s1"]
    assert names("runs/CartPole-v1/ppo") == names("CartPole-v1/ppo") == names("CartPole-v1/pp") == PPO
    assert sorted(names("runs")) == sorted(names("CartPole-v1")) == sorted(names("Cart")) == PPO + VPG
    assert names("runs/*/vpg") == names("*/vpg/s*") == VPG
    assert names("latest") == ["ppo/s2"]  # by when it was started, not by name
    assert sorted(names("s1")) == ["ppo/s1", "vpg/s1"]


@pytest.mark.usefixtures("runs")
def test_an_env_is_all_its_runs_also_those_of_sweeps():
    make_run(Path("runs/sweeps/mine/a2c-s0"), algo="a2c")
    make_run(Path("runs/sweeps/mine/other-s0"), env="Acrobot-v1")
    assert sorted(names("CartPole-v1")) == ["mine/a2c-s0", *PPO, *VPG]
    assert sorted(names("runs/CartPole-v1")) == PPO + VPG  # a folder
    assert names("Acrobot-v1") == ["mine/other-s0"]


@pytest.mark.usefixtures("runs")
def test_a_run_that_is_named_twice_comes_once_and_the_order_is_that_of_the_words():
    assert names("CartPole-v1/vpg/s1", "CartPole-v1/vpg", "runs/CartPole-v1/vpg/s0") == ["vpg/s1", "vpg/s0"]


def test_nothing_found(runs, tmp_path):
    with pytest.raises(UsageError, match=r"no run 'CartPole-v1/pqo'; did you mean 'CartPole-v1/ppo'\?"):
        select_runs(["CartPole-v1/pqo"])
    with pytest.raises(UsageError, match=r"no run 'x\*'"):
        select_runs(["x*"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there are no runs in empty/"):
        select_runs(["empty"])
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(UsageError, match=r"none below runs/; train one: surefoot train CartPole-v1"):
        select_runs(["CartPole-v1"])


def test_a_run_elsewhere(tmp_path):
    make_run(tmp_path / "elsewhere" / "deep" / "one")
    assert names("elsewhere") == ["deep/one"]
