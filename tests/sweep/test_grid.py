"""Grids as they are typed and as they are written in TOML."""

from pathlib import Path

import pytest

from surefoot.errors import UsageError
from surefoot.sweep.grid import Grid, parse_seeds, parse_vary, read_grids, seeds_text, with_flags


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["0..3"], (0, 1, 2, 3)),
        (["0,3,7"], (0, 3, 7)),
        (["0", "1", "2"], (0, 1, 2)),
        (["5", "0..2", "1,9"], (5, 0, 1, 2, 9)),
        (["4..4"], (4,)),
    ],
)
def test_seeds_are_read(words, expected):
    assert parse_seeds(words) == expected
    assert parse_seeds([seeds_text(expected)]) == expected


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("3..1", "smaller number first: 1..3"),
        ("1-5", "write them as 0..9"),
        ("-1", "not a seed"),
        ("", "none given"),
        ("0..99999999", "at most 100,000 are allowed"),
        ("x", "'x' is not a seed"),
    ],
)
def test_wrong_seeds_are_explained(word, says):
    with pytest.raises(UsageError, match=says):
        parse_seeds([word])


def test_varied_settings_are_read():
    assert parse_vary(["learning-rate=1e-4, 3e-4", "num_envs=8"]) == {
        "learning_rate": ("1e-4", "3e-4"),
        "num_envs": ("8",),
    }
    assert parse_vary(["hidden_sizes=64,64;128"]) == {"hidden_sizes": ("64,64", "128")}
    assert parse_vary(['env_kwargs={"a": 1, "b": 2};{}']) == {"env_kwargs": ('{"a": 1, "b": 2}', "{}")}


@pytest.mark.parametrize("word", ["learning_rate", "learning_rate=", "=3", "gamma=,"])
def test_a_wrong_vary_is_explained(word):
    with pytest.raises(UsageError, match="--vary learning_rate=1e-4,3e-4"):
        parse_vary([word])


def test_a_setting_is_varied_or_fixed_and_env_algo_and_seed_have_flags_of_their_own():
    with pytest.raises(UsageError, match="twice"):
        parse_vary(["gamma=0.9", "gamma=0.8"])
    with pytest.raises(UsageError, match="both fixed and varied"):
        Grid(envs=("E",), settings={"gamma": 1}, vary={"gamma": (1, 2)})
    for name, key in (("seed", "seeds"), ("env", "env"), ("algo", "algo")):
        with pytest.raises(UsageError, match=f"under {key}"):
            Grid(envs=("E",), vary={name: (1,)})


FILE = """
env = ["CartPole-v1", "Acrobot-v1"]
seeds = "0..2"
[settings]
total_steps = 10_000
gamma = 0.99
[vary]
learning_rate = [1e-4, 3e-4]

[[grid]]
algo = "ppo"
[grid.vary]
clip_ratio = [0.1, 0.2]

[[grid]]
algo = ["a2c", "vpg"]
seeds = [7, 8]
[grid.settings]
gamma = 0.9
learning_rate = 1e-3
"""


def test_grids_of_a_file_inherit_what_is_outside_of_them():
    Path("grid.toml").write_text(FILE, encoding="utf-8")
    first, second = read_grids(Path("grid.toml"))
    assert first == Grid(
        envs=("CartPole-v1", "Acrobot-v1"),
        algos=("ppo",),
        seeds=(0, 1, 2),
        settings={"total_steps": 10_000, "gamma": 0.99},
        vary={"learning_rate": (1e-4, 3e-4), "clip_ratio": (0.1, 0.2)},
    )
    assert second.algos == ("a2c", "vpg")
    assert second.seeds == (7, 8)
    assert second.settings == {"total_steps": 10_000, "gamma": 0.9, "learning_rate": 1e-3}
    assert second.vary == {}
    assert len(list(first.combinations())) == 4


def test_a_grid_is_read_as_it_was_written():
    import tomli_w

    grid = Grid(envs=("E",), preset="none", settings={"total_steps": "5k", "tags": ["a"]}, vary={"gamma": (0.9, "1")})
    Path("grid.toml").write_text(tomli_w.dumps({"surefoot": "1", "grid": [grid.as_toml()]}), encoding="utf-8")
    assert read_grids(Path("grid.toml")) == [grid]


def test_what_is_typed_replaces_what_the_file_says():
    grid = Grid(envs=("E",), settings={"gamma": 0.9}, vary={"learning_rate": (1, 2)})
    typed = with_flags(grid, seeds=(3,), settings={"learning_rate": "5"}, vary={"gamma": ("0.5",)})
    assert typed == Grid(envs=("E",), seeds=(3,), settings={"learning_rate": "5"}, vary={"gamma": ("0.5",)})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('envs = "E"', "did you mean 'env'"),
        ('env = "E"\ngamma = 1', r"go into \[settings\]"),
        ("env = 3", "not a name"),
        ('env = "E"\nvary = 3', "not a table"),
        ('env = "E"\n[vary]\ngamma = 3', "list of values"),
        ('env = "E"\n[vary]\ngamma = []', "list of values"),
        ('env = "E"\ngrid = 3', r"\[\[grid\]\]"),
        ('env = "E"\npreset = 3', "in quotes"),
        ("seeds = 1", "no environment"),
        ("env = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_explained(text, says):
    Path("grid.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        read_grids(Path("grid.toml"))
