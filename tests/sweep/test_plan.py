"""The runs of a grid: their names, their commands, and what is found before the first of them starts."""

import tomllib
from pathlib import Path

import pytest

from surefoot.cli.train import _parser
from surefoot.errors import UsageError
from surefoot.sweep.grid import Grid
from surefoot.sweep.plan import check_envs, expand
from surefoot.training.config.resolve import resolve
from surefoot.training.config.toml_files import to_toml

ENV = ("CartPole-v1",)


def names(**grid):
    return [run.name for run in expand([Grid(envs=ENV, **grid)]).runs]


def test_names_are_made_of_the_settings_and_the_seed():
    assert names(seeds=(0, 2)) == ["CartPole-v1/ppo/s0", "CartPole-v1/ppo/s2"]
    assert names(seeds=(1,), algos=("ppo", "a2c"), vary={"learning_rate": ("1e-4", "3e-4")}) == [
        "CartPole-v1/ppo/learning_rate=0.0001-s1",
        "CartPole-v1/ppo/learning_rate=0.0003-s1",
        "CartPole-v1/a2c/learning_rate=0.0001-s1",
        "CartPole-v1/a2c/learning_rate=0.0003-s1",
    ]


def test_a_name_does_not_depend_on_how_a_setting_was_typed():
    typed = names(seeds=(0,), settings={"total_steps": "5k"}, vary={"learning_rate": ("1e-4",)})
    written = names(seeds=(0,), settings={"learning_rate": 0.0001, "total_steps": 5000})
    assert typed == written == ["CartPole-v1/ppo/learning_rate=0.0001,total_steps=5000-s0"]


def test_labels_are_no_part_of_a_name_and_a_preset_is():
    assert names(seeds=(0,), settings={"tags": "x", "name": "y"}) == ["CartPole-v1/ppo/s0"]
    assert names(seeds=(0,), preset="none") == ["CartPole-v1/ppo/preset=none-s0"]


def test_names_are_safe_and_different_where_settings_are():
    odd = ('{"a": "x/y"}', '{"a": "x:y"}', '{"a": "' + "z" * 300 + '"}')
    found = names(seeds=(0,), vary={"env_kwargs": odd})
    assert len(set(found)) == 3
    for name in found:
        *_, last = name.split("/")
        assert len(name.split("/")) == 3
        assert len(last) < 150
        assert not set(last) & set('\\:*?"<>|{} ')


def test_runs_that_would_share_a_directory_are_refused():
    with pytest.raises(UsageError, match="two folders"):
        expand([Grid(envs=("a/b:E", "a:b/E"), seeds=(0,))])


def test_the_first_seed_of_everything_comes_first():
    assert [run.seed for run in expand([Grid(envs=ENV, algos=("ppo", "a2c"), seeds=(3, 1))]).runs] == [1, 1, 3, 3]


def test_points_that_are_the_same_run_are_said_and_run_once():
    plan = expand([Grid(envs=ENV, seeds=(0, 1), vary={"learning_rate": ("1e-4", "0.0001", "3e-4")})])
    assert len(plan.runs) == 4
    assert plan.notes == ("ppo on CartPole-v1 with learning_rate=0.0001 is given twice; it runs once",)
    preset = resolve("CartPole-v1", "ppo").algorithm.num_envs
    plan = expand([Grid(envs=ENV, seeds=(0,)), Grid(envs=ENV, seeds=(0, 1), settings={"num_envs": preset})])
    assert [run.name for run in plan.runs] == ["CartPole-v1/ppo/s0", "CartPole-v1/ppo/s1"]
    assert not plan.notes  # the grids of a folder's plan may overlap


SETTINGS = {
    "learning_rate": "linear:1e-3:1e-4",
    "gamma": 0.123456789012345678,
    "hidden_sizes": "32,16",
    "log_every": "none",
    "normalize_rewards": True,
    "sign_rewards": False,
    "env_kwargs": {"sutton_barto_reward": True},
    "wrappers": ["FlattenObservation", 'TimeLimit{"max_episode_steps": 50}'],
    "tags": ["a", "b"],
    "max_time": "1h30m",
    "name": "it's -a- name",
    "target_return": -5e-1,
    "checkpoint_every": 1000,
}


@pytest.mark.parametrize("preset", ["auto", "none"])
def test_a_command_resolves_to_the_same_settings(preset):
    (run,) = expand([Grid(envs=ENV, seeds=(3,), preset=preset, settings=SETTINGS)]).runs
    typed = vars(_parser("ppo").parse_args(run.words[1:]))
    names = ("env", "preset", "config", "like", "run_dir", "seeds", "vary", "dry_run", "json", "trust", "ranks")
    control = {key: typed.pop(key) for key in names}
    config = resolve(control["env"], typed.pop("algo"), control["preset"], None, typed)
    assert config.run.seed == 3
    assert config.run.threads == 1
    assert config.flat() == {**run.point.config.flat(), "seed": 3}


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"settings": {"gama": 1}}, "did you mean 'gamma'"),
        ({"vary": {"gamma": (0.9, 2)}}, "gamma=2.0 is too large"),
        ({"algos": ("ppo", "trpo"), "settings": {"clip_ratio": 0.1}}, "not a setting of trpo; it belongs to ppo"),
        ({"algos": ("pppo",)}, "did you mean 'ppo'"),
        ({"preset": "nothing"}, "unknown preset"),
    ],
)
def test_everything_is_checked_before_anything_starts(grid, says):
    with pytest.raises(UsageError, match=says) as caught:
        expand([Grid(envs=ENV, **grid)])
    assert any("in the run of" in note for note in caught.value.__notes__)


def test_an_unknown_env_is_found_before_the_first_run():
    with pytest.raises(UsageError, match="did you mean 'CartPole-v1'"):
        check_envs(expand([Grid(envs=("CartPole-v1", "CartPol-v1"))]).runs)


@pytest.mark.parametrize("grid", [{"envs": ("mine.py:Env",)}, {"envs": ENV, "algos": ("mine.py:Algo",)}])
def test_code_that_only_a_file_names_needs_trust(grid):
    Path("mine.py").write_text("raise SystemExit('executed')", encoding="utf-8")
    with pytest.raises(UsageError, match=r"use --trust|say so: --trust"):
        expand([Grid(**grid)], source="grid.toml")
    if "algos" not in grid:
        assert expand([Grid(**grid)], source="grid.toml", trust=True).runs
        check_envs(expand([Grid(**grid)]).runs)  # it waits for its run


def test_a_run_with_other_settings_is_noticed():
    (run,) = expand([Grid(envs=ENV, seeds=(3,), settings={"gamma": 0.9, "tags": ["x"]})]).runs
    written = tomllib.loads(to_toml(run.point.config)) | {"seed": 3, "tags": [], "log_every": 7}
    assert run.unlike(written) == []
    other = run.unlike(written | {"gamma": 0.8, "seed": 4})
    assert sorted(other) == ["gamma=0.8 instead of 0.9", "seed=4 instead of 3"]
