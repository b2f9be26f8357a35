"""`surefoot tune` as typed, `surefoot.tune`, and the examples of docs/tune.md."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "tune.md"
SHORT = [
    "--total-steps=900", "--num-envs=2", "--rollout-length=16", "--num-epochs=2", "--eval-episodes=4", "--seeds=2",
    "--validation-seeds=3",
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "no environment given; for example: surefoot tune CartPole-v1"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("CartPole-v1 --budget soon", "neither a time nor trials; write it as 30m, 2h or 200-trials"),
        ("CartPole-v1 --budget 1-trials", "at least 2-trials"),
        ("CartPole-v1 --budget -1h", "write it as 30m, 2h or 200-trials"),
        ("CartPole-v1 --seeds 1", "seeds=1 is too small; it must be at least 2"),
        ("CartPole-v1 --seeds 0..3", "seeds='0..3' is not a whole number"),
        ("CartPole-v1 --validation-seeds 2", "validation_seeds=2 is too small"),
        ("CartPole-v1 --seed -1", "seed=-1 is too small"),
        ("CartPole-v1 --jobs 0", "jobs=0 is too small"),
        ("CartPole-v1 --on moon", "choose from 'local', 'ray'"),
        ("CartPole-v1 --algo pppo", "unknown algorithm 'pppo'; did you mean"),
        ("CartPole-v1 --search gama=0.9,1", "did you mean 'gamma'"),
        ("CartPole-v1 --gamma 0.9 --search gamma=0.9,1", "both fixed and searched"),
        ("CartPole-v1 --vary gamma=0.9,1", "--search gamma=0.9,0.99"),
        ("CartPole-v1 --max-time 3m", "--budget limits the time"),
        ("CartPole-v1 --config x.toml", "given as flags"),
        ("CartPole-v1 --preset none", "the shipped preset"),
        ("CartPole-v1 --clip-rati 0.1", "did you mean '--clip-ratio'"),
        ("CartPole-v1 --eval-episodes 0", "eval_episodes=0; give at least 1"),
        ("CartPole-v1 --total-steps 5k", "the first rung of 5,000 steps has 556"),
        (".", "has no tune.toml"),
    ],
)
def test_wrong_input_is_explained_and_nothing_starts(words, says, capsys):
    assert main(["tune", *words.split()]) == 2
    assert says in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_without_optuna_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr("surefoot.tuning.journal.find_spec", lambda name: None)
    assert main(["tune", "CartPole-v1"]) == 2
    assert 'pip install "surefoot[tune]"' in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_dry_run_shows_the_search_and_writes_nothing(capsys):
    assert main(["tune", "CartPole-v1", "--gamma=0.98", "--search=value_coef=0.25,0.5", "--dry-run", "--json"]) == 0
    said, shown = capsys.readouterr()
    found = json.loads(said)
    assert found["folder"] == "runs/tunes/CartPole-v1_ppo"
    assert found["settings"] == {"gamma": 0.98}
    assert found["search"]["value_coef"] == "0.25,0.5"
    assert "gamma" not in found["search"]
    assert re.search(r"learning_rate +0\.0001\.\.0\.005:log +default 0\.0003", shown)
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OSError(28, "No space left on device"), 1, "t: No space left on device; to continue: surefoot tune t"),
        (KeyboardInterrupt(), 130, "To continue:\nsurefoot tune t"),
    ],
)
def test_what_stops_a_tune_between_two_runs_is_told_with_the_way_on(error, code, says, monkeypatch, capsys):
    pytest.importorskip("optuna")

    def stop(*_):
        raise error

    monkeypatch.setattr("surefoot.cli.tune.carry_out_tune", stop)
    assert main(["tune", "CartPole-v1", "--out=t"]) == code
    assert says in capsys.readouterr().err
    assert main(["tune", "t", "--gamma=0.9"]) == 2
    assert "only --budget can change" in capsys.readouterr().err
    assert main(["tune", "CartPole-v1", "--out=t", "--gamma=0.9"]) == 2
    assert "begun with other settings (settings, search)" in capsys.readouterr().err
    Path("t/tune.toml").write_text("env = 3\n", encoding="utf-8")
    assert main(["tune", "t"]) == 2
    assert "tune.toml is damaged" in capsys.readouterr().err


def test_a_folder_with_the_name_of_an_env_is_no_obstacle(capsys):
    Path("CartPole-v1").mkdir()
    assert main(["tune", "CartPole-v1", "--dry-run"]) == 0


def test_python_explains_what_it_cannot_take():
    with pytest.raises(UsageError, match=r"name the env, or its function as file\.py:Factory"):
        surefoot.tune(lambda: None)
    with pytest.raises(UsageError, match=r"file\.py:Class"):
        surefoot.tune("CartPole-v1", surefoot.Callback)
    with pytest.raises(UsageError, match="--budget limits the time"):
        surefoot.tune("CartPole-v1", max_time="3m")
    with pytest.raises(UsageError, match="unknown setting 'gama'"):
        surefoot.tune("CartPole-v1", gama=0.9)
    with pytest.raises(UsageError, match=r"gamma=1\.5 is too large"):
        surefoot.tune("CartPole-v1", search={"hidden_sizes": [(64, 64), (256, 256)], "gamma": [0.9, 1.5]})


def start(*words):
    """The command as a process of its own, with an env that waits while there is a file `wait`."""
    command = [sys.executable, "-m", "surefoot", "tune", f"{HERE / 'toy.py'}:Patient", "--budget=4-trials", *SHORT]
    return subprocess.Popen([*command, "--jobs=2", "--out=t", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_until(what, process, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_tune_that_is_stopped_in_the_middle_of_a_trial_goes_on(number):
    pytest.importorskip("optuna")
    Path("wait").touch()
    first = start()
    wait_until(Path("waiting").exists, first)
    os.kill(first.pid, number)
    Path("wait").unlink()
    said = first.communicate(timeout=300)[0].decode()
    if number == signal.SIGINT:
        assert first.returncode == 130, said
        assert "every run is saved. To continue:\nsurefoot tune t" in said
    else:
        assert first.returncode == -9
        deadline = time.monotonic() + 300.0
        while held("t/trials"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    begun = {path.parent for path in Path("t/trials").rglob("manifest.json")}
    assert begun
    again = subprocess.run(
        [sys.executable, "-m", "surefoot", "tune", "t", "--trust", "--json", "--jobs=2"],
        capture_output=True,
        timeout=600,
    )
    assert again.returncode == 0, again.stderr.decode()
    result = json.loads(again.stdout.splitlines()[-1])
    assert result["trials"] == 4
    assert result["better"] == ((Path("t") / "preset.toml").exists())
    assert all(json.loads((path / "status.json").read_text())["state"] == "done" for path in begun)


def held(folder):
    """Whether a run below is still being written: its process saves itself after the tune was killed."""
    return any(RunDirectory(path.parent).is_locked() for path in Path(folder).rglob("manifest.json"))


@pytest.mark.slow
def test_an_env_that_always_breaks_ends_the_tune_with_its_error(capsys):
    pytest.importorskip("optuna")
    words = ["tune", f"{HERE / 'toy.py'}:Broken", "--budget=20-trials", "--search=gamma=0.9,0.99", *SHORT, "--jobs=2"]
    assert main([*words, "--out=t"]) == 1
    said = capsys.readouterr().err
    assert "10 trials in a row failed" in said
    assert "the simulator broke" in said


@pytest.mark.slow
def test_the_example_of_the_page_runs_and_goes_on(capsys):
    pytest.importorskip("optuna")
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    example = next(block for block in blocks if "my-tune" in block)
    for line in example.splitlines():
        assert main([*shlex.split(line, comments=True)[1:], "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["folder"] == "my-tune"
    assert found["trials"] == 6
    assert len(list(Path("my-tune").rglob("manifest.json"))) > 20
    assert main(["compare", "my-tune/trials"]) == 0
