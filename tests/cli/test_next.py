"""What is printed at the end of a training can be typed as it is."""

import re
import shlex
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.runs.index import list_runs

SHORT = ["--preset=none", "--total-steps=256", "--num-envs=2", "--rollout-length=32", "--num-minibatches=1"]
SHORT += ["--eval-episodes=1", "--max-episode-steps=20", "--seed=0"]
TESTS = Path(__file__).parents[1]
MINE = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Grid(gym.Env):
    metadata = {"render_modes": ["ansi"]}
    observation_space, action_space = spaces.Box(0, 10, (7, 7, 3), np.uint8), spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((7, 7, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((7, 7, 3), np.uint8), 1.0, False, False, {}


class Drawn(Grid):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


def silent():  # an env that could be drawn, made by what cannot be told to
    return gym.make("CartPole-v1")
"""


def closing_lines(words, capsys, run_dir=None):
    assert main(["train", *words, *SHORT, *([f"--run-dir={run_dir}"] if run_dir else [])]) == 0
    out = capsys.readouterr().out
    return dict(re.findall(r"^(run|curves|browser|next): +(.*)$", out, re.MULTILINE))


@pytest.fixture
def _mine(tmp_path):
    (tmp_path / "my envs").mkdir()
    (tmp_path / "my envs" / "mine.py").write_text(MINE)


CASES = {
    "CartPole": (["CartPole-v1"], "video"),
    "CartPole in workers": (["CartPole-v1", "--workers=1"], "video"),
    "FrozenLake": (["FrozenLake-v1"], "video"),
    "an env that is not drawn": (["my envs/mine.py:Grid"], "eval"),
    "an env that is": (["my envs/mine.py:Drawn"], "video"),
    "a factory that takes no render_mode": (["my envs/mine.py:silent"], "eval"),
    "several agents": ([f"pettingzoo:{TESTS}/parallel_worlds.py:World", "--num-envs=1"], "eval"),
    "another env to evaluate in": (["CartPole-v1", "--eval-env=my envs/mine.py:silent"], "eval"),
}


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_after_next_works_as_typed(name, capsys):
    words, command = CASES[name]
    line = closing_lines(words, capsys, "my run")["next"]
    typed = shlex.split(line)
    assert typed[:3] == ["surefoot", command, "my run"]
    assert main([*typed[1:], *(["--episodes=1"] if command == "eval" else [])]) == 0
    assert (command == "video") == bool(list(Path("my run").rglob("*.mp4")))


def test_of_a_pool_too(capsys):
    pytest.importorskip("envpool")
    line = closing_lines(["envpool:CartPole-v1"], capsys)["next"]
    assert line.startswith("surefoot video ")
    assert main(shlex.split(line)[1:]) == 0


def test_an_interrupted_run_is_resumed_next(capsys):
    lines = closing_lines(["CartPole-v1", "--max-time=0.000001"], capsys)
    assert lines["next"] == f"surefoot resume {lines['run']}"
    assert main(["resume", lines["run"], "--max-time=10h"]) == 0
    assert "next:    surefoot video runs/CartPole-v1/" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["runs/mine/1", "other place"])
def test_the_commands_for_curves_work_as_typed(where, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    lines = closing_lines(["CartPole-v1"], capsys, where)
    assert lines["curves"] == f"surefoot plot {shlex.quote(where)}"
    assert main(shlex.split(lines["curves"])[1:]) == 0
    assert Path("episode_return.png").exists()

    served = []
    monkeypatch.setattr("surefoot.dashboard.server.serve", lambda root, *_, **__: served.extend(list_runs(root)))
    assert main(shlex.split(lines["browser"])[1:]) == 0
    assert [run.path.resolve() for run in served] == [Path(where).resolve()]


def test_the_page_shows_all_runs_where_the_run_is_one_of_them(capsys):
    assert closing_lines(["CartPole-v1"], capsys)["browser"] == "surefoot ui"
    assert closing_lines(["CartPole-v1"], capsys, "other place")["browser"] == "surefoot ui --runs 'other place'"


def test_without_the_extras_the_terminal_and_how_to_install_are_named(capsys, monkeypatch):
    monkeypatch.setattr("surefoot.training.reports.result.can_draw", lambda: False)
    monkeypatch.setattr("surefoot.training.reports.result.missing_for_page", lambda: ["starlette"])
    lines = closing_lines(["CartPole-v1"], capsys)
    assert lines["curves"] == f"surefoot plot {lines['run']} --terminal"
    assert main(shlex.split(lines["curves"])[1:]) == 0
    assert "episode_return" in capsys.readouterr().out
    assert lines["browser"] == 'pip install "surefoot[ui]" && surefoot ui'
