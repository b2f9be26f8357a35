"""`surefoot sweep` and `surefoot compare --env …` as typed."""

import json
import sys
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.sweep.carry_out import track
from surefoot.sweep.display import make_watcher
from surefoot.sweep.folder import SweepFolder
from surefoot.sweep.grid import Grid
from surefoot.sweep.plan import expand
from tests.cli.terminal import Screen, terminal

SHORT = ["--preset=none", "--total-steps=512", "--rollout-length=64", "--num-envs=2", "--eval-episodes=2"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--env CartPole-v1 --learning-rat 1", "did you mean '--learning-rate'"),
        ("--env CartPole-v1 --lr 1", "here it is --learning-rate"),
        ("--env CartPole-v1 --seed 3", "a sweep has several: --seeds 0..9"),
        ("--env CartPole-v1 --run-dir x", "--out names the folder"),
        ("--env CartPole-v1 --config x.toml", "surefoot sweep GRID.toml"),
        ("--env CartPole-v1 --algo a2c --clip-ratio 0.1", "not a setting of a2c; it belongs to ppo"),
        ("--env CartPole-v1 --algo ppo,trpo --clip-ratio 0.1", "not a setting of trpo"),
        ("--env CartPole-v1 --vary gama=0.9", "did you mean 'gamma'"),
        ("--env CartPole-v1 --vary seed=1,2", "under seeds"),
        ("--env CartPole-v1 --gamma 0.9 --vary gamma=0.8", "both fixed and varied"),
        ("--env CartPole-v1 --jobs 0", "jobs=0 is too small"),
        ("--env CartPole-v1 --jobs two", "jobs='two' is not a whole number"),
        ("--env CartPole-v1 --on moon", "choose from 'local', 'ray'"),
        ("--env CartPole-v1 --address auto", "--address has no effect on this machine; use it with --on ray"),
        ("--env CartPole-v1 --on ray --no-pin", "--no-pin has no effect on a Ray cluster; use it with --on local"),
        ("--env CartPol-v1", "did you mean 'CartPole-v1'"),
        ("CartPole-v1", "surefoot sweep --env CartPole-v1"),
        ("", "no environment given"),
        (". --seeds 0", "has its own plan"),
        (".", "has no sweep.toml"),
    ],
)
def test_wrong_input_is_explained_and_nothing_starts(words, says, capsys):
    assert main(["sweep", *words.split()]) == 2
    assert says in capsys.readouterr().err
    assert not list(Path().rglob("*.toml"))


def test_a_dry_run_shows_the_command_of_every_run(capsys):
    words = ["sweep", "--env", "CartPole-v1", "--algo", "ppo", "a2c", "--seeds=0..1", "--vary=gamma=0.9,0.90,0.8"]
    assert main([*words, "--dry-run"]) == 0
    note, _, first, *_, last = capsys.readouterr().out.splitlines()
    assert note == "note: ppo on CartPole-v1 with gamma=0.9 is given twice; it runs once"
    place = "runs/sweeps/CartPole-v1_ppo+a2c"
    command = "surefoot train CartPole-v1 --algo=ppo --seed=0 --threads=1 --gamma=0.9"
    assert first == f"{command} --run-dir={place}/CartPole-v1/ppo/gamma=0.9-s0"
    assert last == f"8 runs in {place}"
    assert not Path("runs").exists()
    assert main([*words, "--dry-run", "--json", "--out=x"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 8


def test_flags_replace_what_a_file_says(capsys):
    Path("grid.toml").write_text('env = "CartPole-v1"\nalgo = "trpo"\n[vary]\ngamma = [0.9, 0.8]\n', encoding="utf-8")
    flags = ["--max-kl=0.02", "--seeds", "3", "--vary=gamma=0.7", "--dry-run"]
    for words in (["grid.toml", *flags], [*flags, "grid.toml"]):
        assert main(["sweep", *words]) == 0
        assert "--gamma=0.7 --max-kl=0.02" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [30, 50, 120])
def test_the_live_display_fits_its_terminal_and_shows_what_fails(columns, monkeypatch):
    runs = track(SweepFolder(Path("out")), expand([Grid(envs=("CartPole-v1",), seeds=(0, 1, 2))]))
    with terminal(monkeypatch, columns) as seen:
        live = make_watcher(sys.stdout)
        live.start(runs, 2)
        runs[0].start()
        runs[0].step, runs[0].seconds, runs[0].episode_return = 50_000, 10.0, 123.0
        runs[1].stage, runs[1].error = "failed", "the simulator broke"
        live.update()
        live.ended(runs[1])
        live.stopping()
        live.stop()
    screen = Screen(columns).feed(seen[0])
    assert not screen.broken
    shown = " ".join(screen.text.split())
    assert shown.startswith("CartPole-v1/ppo/s1 failed: the simulator broke ━")
    assert "0 of 3 runs done, 1 running, 1 failed, 0:20 left stopping: every run finishes its update and saves" in shown
    assert ("50% CartPole-v1/ppo/s0 5,000 steps/s return 123.0" in shown) == (columns > 60)
    assert shown.endswith("return 123.0" if columns >= 50 else "…")  # the name gives way first
    assert "50% C" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("some-run --env CartPole-v1", "give one of the two"),
        ("--seeds 0..3", "name an environment"),
        ("--gamma 0.9", "name an environment"),
        ("--out folder", "ends in .html"),
        ("--env CartPole-v1 --out a --out b", "one report and one folder"),
        ("--env CartPole-v1 --gama 1", "did you mean '--gamma'"),
    ],
)
def test_wrong_input_of_a_comparison(words, says, capsys):
    assert main(["compare", *words.split()]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_comparison_trains_what_is_missing_and_compares_exactly_these(capsys):
    words = ["compare", "--env", "CartPole-v1", "--algo", "ppo", "a2c", *SHORT, "--jobs=2", "--out=out"]
    assert main([*words, "--seeds=5", "--json"]) == 0  # another seed, not to be compared later
    capsys.readouterr()
    assert main([*words, "--seeds=0..2", "--json", "--out=report.html", "--plot=picture.svg"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out.splitlines()[-1])
    assert "6 of 6 runs done" in err
    (table,) = found["tables"]
    assert sorted((row["name"], row["runs"]) for row in table["summaries"]) == [("a2c", 3), ("ppo", 3)]
    assert Path("report.html").stat().st_size > 1000
    assert Path("picture.svg").exists()
    assert main([*words, "--seeds=0..2", "--quiet"]) == 0
    assert "ppo" in capsys.readouterr().out
    assert main([*words, "--seeds=0..2", "--dry-run"]) == 0
    assert "6 runs in out" in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_of_values_of_a_setting(capsys):
    assert main(["compare", "--env", "CartPole-v1", *SHORT, "--vary=gamma=0.9,0.8", "--seeds=0..1", "--out=out"]) == 0
    said = capsys.readouterr().out
    assert "gamma=0.9" in said
    assert "gamma=0.8" in said


@pytest.mark.slow
def test_a_sweep_ends_with_the_command_that_compares_its_runs(capsys):
    assert main(["sweep", "--env", "CartPole-v1", "--algo", "ppo", "a2c", *SHORT, "--seeds=0..1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("compare: surefoot ")
    assert main(last.split()[2:]) == 0
    said = capsys.readouterr().out
    assert "a2c " in said
    assert "ppo " in said
