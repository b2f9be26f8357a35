"""The commands as a person types them."""

import json
import os
import re
import resource
import subprocess
import sys
from contextlib import suppress

import pytest

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.cli.main import COMMANDS, main
from surefoot.cli.theory import STUDIES
from surefoot.training.reports.progress import as_return

SHORT = ["--preset", "none", "--total-steps", "1k", "--num-envs", "4", "--rollout-length", "64", "--eval-episodes", "3"]


def run(*words, code=0):
    assert main(list(words)) == code


def test_train_prints_what_it_does_and_what_to_type_next(capsys):
    run("train", "CartPole-v1", *SHORT, "--seed", "4")
    out = capsys.readouterr().out
    assert "ppo on CartPole-v1, seed 4" in out
    assert re.search(r"step +\d", out)
    assert "greedy return" in out
    assert re.search(r"next: +surefoot video runs/CartPole-v1/ppo/", out)


def test_json_is_the_last_line_of_stdout_and_all_of_it(capsys):
    run("train", "CartPole-v1", *SHORT, "--json")
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    result = json.loads(captured.out)
    assert result["env"] == "CartPole-v1"
    assert result["eval"]["episodes"] == 3
    assert "greedy return" in captured.err


def test_eval_repeats_the_runs_own_evaluation(capsys):
    run("train", "CartPole-v1", *SHORT, "--json")
    trained = json.loads(capsys.readouterr().out)
    run("eval", "latest", "--episodes", "3", "--json")
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["mean_return"] == trained["eval"]["mean_return"]
    run("eval", trained["run_dir"], "--episodes", "2", "--stochastic", "--seed", "1")
    assert "stochastic return" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("eval", "no run given; for example: surefoot eval latest"),
        ("video", "no run given; for example: surefoot video latest"),
        ("resume", "no run given; for example: surefoot resume latest"),
        ("explain", "no word given; for example: surefoot explain ppo (or gae, clip_ratio, …)"),
        ("list", "no kind given; for example: surefoot list runs (or algos, envs, presets)"),
    ],
)
def test_what_is_left_out_is_shown_by_example(command, message, capsys):
    assert main([command]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.15,), "0.15"),
        ((-0.001,), "0.00"),
        ((0.0, -1.0, 1.0), "0.00"),
        ((-1.0, 12.0), "-1.0"),
        ((487.31,), "487.3"),
        ((-0.04, 100.0), "0.0"),
        ((float("nan"),), "nan"),
    ],
)
def test_small_returns_have_more_digits_and_none_is_minus_zero(values, shown):
    assert as_return(*values) == shown


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_explain_shows_formula_change_settings_and_source(algo, capsys):
    run("explain", algo)
    out = capsys.readouterr().out
    assert f"[{algo}]" in out
    assert "From " in out or algo == "reinforce"
    assert "learning_rate [" in out
    assert re.search(r"source: .*algorithms/\w+\.py", out)


def test_list_shows_algorithms_environments_presets_and_runs(capsys):
    run("list", "algos")
    assert "reinforce" in capsys.readouterr().out
    run("list", "envs", "--json")
    assert {"env": "CartPole-v1"} in json.loads(capsys.readouterr().out)
    run("list", "presets")
    capsys.readouterr()
    run("list", "runs")
    assert "no runs yet" in capsys.readouterr().out
    run("train", "CartPole-v1", *SHORT)
    capsys.readouterr()
    run("list", "runs", "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["env"], row["algo"], row["state"], row["steps"]) == ("CartPole-v1", "ppo", "done", 768)


def test_dry_run_shows_every_value_with_its_origin_and_does_nothing(capsys, tmp_path):
    run("train", "CartPole-v1", "--gamma", "0.9", "--dry-run")
    out = capsys.readouterr().out
    assert re.search(r"gamma +0.9 +given", out)
    assert "num_epochs" in out
    assert not list(tmp_path.iterdir())


def test_flags_follow_the_algorithm(capsys):
    run("train", "CartPole-v1", "--algo", "trpo", "--preset", "none", "--max-kl", "0.02", "--dry-run")
    assert re.search(r"max_kl +0.02 +given", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "CartPol-v1"], "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (["train", "CartPole-v1", "Pendulum-v1"], "unexpected argument 'Pendulum-v1'"),
        (
            ["train", "CartPole-v1", "--total-steps", "ten"],
            "'ten' is not a whole number; write it as 100_000, 100k or 1M",
        ),
        (["train", "CartPole-v9"], "did you mean 'CartPole-v1'?"),
        (
            ["train", "CartPole-v1", "--lerning-rate", "1"],
            "unknown flag --lerning-rate; did you mean '--learning-rate'?",
        ),
        (["train", "CartPole-v1", "--max-kl", "1"], "--max-kl is not a setting of ppo; it belongs to npg, trpo"),
        (["train", "CartPole-v1", "--algo", "pppo"], "unknown algorithm 'pppo'; did you mean 'ppo'?"),
        (["train", "CartPole-v1", "--preset", "none", "--num-minibatches", "3"], "num_minibatches=3 does not divide"),
        (["train", "CartPole-v1", "--total-steps", "-5"], "total_steps=-5 is too small"),
        (["train", "CartPole-v1", "--preset", "none", "--tanh-mean"], "tanh_mean is for continuous actions"),
        (["train", "Pendulum-v1", "--preset", "homework/nothing"], "unknown preset"),
        (["train"], "no environment given"),
        (["train", "CartPole-v1", "--lr", "1"], "unknown flag --lr; here it is --learning-rate"),
        (["train", "CartPole-v1", "--env-kwargs", "{broken"], "env_kwargs='{broken' is not JSON"),
        (["train", "missing.py:Env"], "the file missing.py does not exist"),
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["eval", "nothing"], "there is no run 'nothing'"),
        (
            ["eval", "--", "--weird", "--episodes", "2"],
            "unexpected argument '--episodes': after --, nothing is read as a flag",
        ),
        (["list", "presest"], "did you mean 'presets'?"),
        (["explain", "trp"], "did you mean 'trpo'?"),
    ],
)
def test_wrong_input_gets_a_message_with_the_fix_and_exit_code_2(words, message, capsys):
    run(*words, code=2)
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_only_what_could_be_an_env_is_suggested(capsys, tmp_path):
    (tmp_path / "odd.py").write_text("import numpy as np\nno = 1\n", encoding="utf-8")
    run("doctor", "odd.py:Nope", code=2)
    assert "there is no 'Nope' in odd.py\n" in capsys.readouterr().err


def test_an_env_that_raises_shows_its_own_traceback_and_exit_code_1(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium as gym\n"
        "class Env(gym.Wrapper):\n"
        "    def __init__(self):\n"
        "        super().__init__(gym.make('CartPole-v1'))\n"
        "    def step(self, action):\n"
        "        return {}['a key of mine']\n"
    )
    run("train", "mine.py:Env", *SHORT, code=1)
    err = capsys.readouterr().err
    assert "raised KeyError" in err
    assert "a key of mine" in err
    assert "mine.py" in err
    assert "surefoot/envs" not in err.split("Traceback")[1].split("mine.py")[1]


def test_an_env_of_ones_own_trains_from_its_file(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import gymnasium as gym\ndef make(gravity=9.8):\n    env = gym.make('CartPole-v1')\n"
        "    env.unwrapped.gravity = gravity\n    return env\n"
    )
    run("train", "mine.py:make", "--env-kwargs", '{"gravity": 1.0}', *SHORT, "--json")
    assert json.loads(capsys.readouterr().out)["env"] == "mine.py:make"


def start(*words, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "surefoot", *words], capture_output=True, text=True, check=True, **kwargs
    )


def cpu_seconds(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("words", [["train", "--help"], ["completion", "candidates", "bash", ":=", "surefoot train "]])
def test_help_and_completion_start_at_once(words):
    """0.3 s is the promise, some three times what Python itself takes for modules of its own on the same machine."""
    yardstick = "import argparse, dataclasses, decimal, hashlib, importlib.metadata, inspect, json, pathlib, tomllib"
    pairs = [(cpu_seconds("-m", "surefoot", *words), cpu_seconds("-c", yardstick)) for _ in range(3)]
    ours, pythons = (min(times) for times in zip(*pairs, strict=True))
    assert ours < 4.0 * pythons


HELPS = [[], *([command] for command in COMMANDS), *(["theory", study] for study in STUDIES)]


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("words", [*HELPS, *(["train", "--algo", algo] for algo in ALGORITHMS)], ids=" ".join)
def test_help_fits_the_terminal(words, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with suppress(SystemExit):
        main([*words, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= max(80, min(columns, 100))


def test_the_package_runs_as_a_module():
    assert start("--version").stdout == f"surefoot {surefoot.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "surefoot", "trian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean 'train'" in done.stderr


def test_help_shows_examples_first_and_every_default():
    text = start("train", "--help", env={**os.environ, "COLUMNS": "120"}).stdout
    assert text.index("examples:") < text.index("options:")
    assert "[0.99]" in text
    assert "--clip-ratio" in text
    assert "--max-kl" in start("train", "--algo", "trpo", "--help").stdout


def test_a_closed_pipe_is_no_error():
    shell = f"{sys.executable} -m surefoot list envs | head -n 1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr


def test_runs_that_cannot_be_read_have_a_line_of_their_own(tmp_path, capsys):
    run("train", "CartPole-v1", *SHORT, "--run-dir", "runs/sound")
    for name, content in {"broken": '{"env": ', "odd": '{"env": [1, 2]}'}.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "manifest.json").write_text(content)
    capsys.readouterr()
    run("list", "runs")
    out, err = capsys.readouterr()
    assert re.search(r"runs/sound +CartPole-v1 +ppo .* done", out)
    assert re.search(r"runs/broken +– .* unreadable", out)
    assert "runs/broken cannot be read: runs/broken/manifest.json is damaged" in err
    assert "runs/odd cannot be read: manifest.json.env is a list of 2, not a string" in err
    run("list", "runs", "--json")
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["runs/odd"]["state"] == "unreadable"
    assert rows["runs/sound"]["env"] == "CartPole-v1"
