"""Which runs belong together, and what a group is called."""

import json

import pytest

from surefoot.analysis.groups import group_runs
from surefoot.runs import Run
from tests.analysis.synthetic import make_run


def groups_of(*folders):
    groups, notes = group_runs([Run(folder) for folder in folders])
    return {group.name: [(m.env, m.seed) for m in group.members] for group in groups}, notes


def test_seeds_of_one_method_are_one_group_with_the_name_of_the_algorithm(tmp_path):
    folders = [make_run(tmp_path / str(seed), seed=seed, threads=seed + 1) for seed in range(3)]
    assert groups_of(*folders) == ({"ppo": [("CartPole-v1", 0), ("CartPole-v1", 1), ("CartPole-v1", 2)]}, [])


def test_algorithms_are_groups_whatever_else_their_presets_differ_in(tmp_path):
    found, _ = groups_of(
        make_run(tmp_path / "a", algo="ppo", learning_rate=0.1, clip_ratio=0.2),
        make_run(tmp_path / "b", algo="trpo", learning_rate=0.2, max_kl=0.01),
        make_run(tmp_path / "c", algo="trpo", env="Pendulum-v1", learning_rate=0.3, max_kl=0.02),
    )
    assert found == {"ppo": [("CartPole-v1", 0)], "trpo": [("CartPole-v1", 0), ("Pendulum-v1", 0)]}


def test_a_setting_that_varies_names_the_groups(tmp_path):
    folders = [
        make_run(tmp_path / f"{rate}-{seed}", seed=seed, learning_rate=rate) for rate in (1e-4, 0.01) for seed in (0, 1)
    ]
    assert list(groups_of(*folders)[0]) == ["learning_rate=0.0001", "learning_rate=0.01"]
    folders.append(make_run(tmp_path / "other", algo="vpg"))
    assert list(groups_of(*folders)[0]) == ["ppo learning_rate=0.0001", "ppo learning_rate=0.01", "vpg"]


def test_lists_and_switches_are_written_as_typed(tmp_path):
    found, _ = groups_of(
        make_run(tmp_path / "a", hidden_sizes=[8, 8], tanh_mean=True),
        make_run(tmp_path / "b", hidden_sizes=[16], tanh_mean=False),
    )
    assert list(found) == ["hidden_sizes=8 8 tanh_mean=yes", "hidden_sizes=16 tanh_mean=no"]


def test_a_setting_that_an_older_version_did_not_write_is_no_difference(tmp_path):
    found, _ = groups_of(make_run(tmp_path / "a", seed=0), make_run(tmp_path / "b", seed=1, patience="none"))
    assert list(found) == ["ppo"]


def test_a_seed_that_was_run_twice_counts_once(tmp_path):
    found, notes = groups_of(make_run(tmp_path / "a"), make_run(tmp_path / "b"), make_run(tmp_path / "c", seed=1))
    assert found == {"ppo": [("CartPole-v1", 0), ("CartPole-v1", 1)]}
    assert notes == ["ppo: seed 0 was run more than once on CartPole-v1; the newest run counts"]


@pytest.mark.parametrize("listed", [("old", "new"), ("new", "old")])
def test_the_newer_of_two_runs_counts_however_they_are_listed(tmp_path, listed):
    for day, name in enumerate(("old", "new"), 1):
        manifest = make_run(tmp_path / name) / "manifest.json"
        manifest.write_text(
            json.dumps(json.loads(manifest.read_text()) | {"created": f"2026-01-0{day}T00:00:00+00:00"})
        )
    groups, _ = group_runs([Run(tmp_path / name) for name in listed])
    assert [member.run.path.name for member in groups[0].members] == ["new"]


def test_runs_that_cannot_be_read_are_named_and_left_out(tmp_path):
    whole, newer, torn, gone = (make_run(tmp_path / name, seed=i) for i, name in enumerate("abcd"))
    (newer / "manifest.json").write_text(json.dumps({"schema": 2, "env": "X", "algo": "y", "seed": 1}))
    (torn / "config.toml").write_text("algo = ")
    runs = [Run(folder) for folder in (whole, newer, torn, gone)]
    for file in gone.iterdir():
        file.unlink()
    gone.rmdir()
    groups, notes = group_runs(runs)
    assert [len(group.members) for group in groups] == [1]
    assert "b is left out: it was written by a newer surefoot (schema 2); update yours" in notes[0]
    assert "not valid TOML" in notes[1]
    assert notes[2].endswith("d is left out: it is gone")


@pytest.mark.parametrize("name", ["\x1b[2Jppo", "a\nb"])
def test_a_strangers_names_are_shown_escaped(tmp_path, name):
    found, _ = groups_of(make_run(tmp_path / "a", algo=name))
    assert all(group.isprintable() for group in found)


def test_names_that_are_cut_short_stay_apart(tmp_path):
    long = "x" * 100
    found, _ = groups_of(make_run(tmp_path / "a", encoder=long + "a"), make_run(tmp_path / "b", encoder=long + "b"))
    assert len(found) == 2
    assert list(found)[1] == f"{next(iter(found))} (2)"
