"""What a run is called, which of its checkpoints stay, and what training shows in Python."""

import io
import json
import re

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory, list_runs
from surefoot.runs.directory import escape
from surefoot.training.config.resolve import resolve
from surefoot.training.reports.trackers import run_name

SMALL = {"preset": "none", "num_envs": 4, "rollout_length": 64, "seed": 1, "eval_episodes": 2, "total_steps": 512}
QUIET = {**SMALL, "progress": False}
WORDS = ["--preset=none", "--num-envs=4", "--rollout-length=64", "--eval-episodes=0", "--total-steps=256"]


def test_a_name_leads_the_directorys_and_finds_the_run(capsys):
    assert main(["train", "CartPole-v1", *WORDS, "--name", "first try/2", "--tags", "paper,baseline"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("first try/2: ppo on CartPole-v1")
    (found,) = list_runs()
    assert re.fullmatch(r"first try_2-\d{8}-\d{6}-s\d+", found.path.name)
    run = surefoot.Run("first try")
    assert (run.name, run.tags) == ("first try/2", ("paper", "baseline"))
    assert run.config["tags"] == ["paper", "baseline"]
    assert run_name(run.directory) == "first try/2"


@pytest.mark.parametrize("name", ["..", "/", "x" * 300, "ü" * 200, "a\nb", "-x"])
def test_odd_names_make_plain_directories(name):
    made = RunDirectory.create(None, "E", "ppo", 1, name).path
    assert made.parent.parent.name == "E"
    assert len(made.name.encode()) < 200
    assert made.name.isprintable()


def test_a_name_of_nothing_is_refused_and_dots_are_no_name():
    with pytest.raises(UsageError, match="name is empty"):
        resolve("CartPole-v1", overrides={"name": " "})
    assert escape("..", "run") == "run"


@pytest.mark.parametrize("given", ["a,b", ["a", "b"], ["a,b"], [" a ", "b,,a"], ("a", "b")])
def test_tags_in_every_spelling(given):
    assert resolve("CartPole-v1", overrides={"tags": given}).run.tags == ("a", "b")


def test_list_shows_names_and_chooses_by_tag(capsys):
    surefoot.train("CartPole-v1", **QUIET)
    main(["list", "runs"])
    assert "name" not in capsys.readouterr().out.splitlines()[0].split()
    for name, tags in (("one", "a"), ("two", "a,b")):
        surefoot.train("CartPole-v1", **QUIET, name=name, tags=tags)
    main(["list", "runs"])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["run", "name", "tags"]
    assert len(rows) == 3
    for tags, names in ((["a"], ["one", "two"]), (["b"], ["two"]), (["a", "b"], ["two"]), (["c"], [])):
        assert main(["list", "runs", "--json", *(f"--tag={tag}" for tag in tags)]) == 0
        assert [row["name"] for row in json.loads(capsys.readouterr().out)] == names
    assert main(["list", "runs", "--tag", "c"]) == 0
    assert "no run has the tag c" in capsys.readouterr().out
    assert main(["list", "algos", "--tag", "a"]) == 2
    assert "surefoot list runs --tag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keep", "steps"), [(None, (768, 896, 1024)), (1, (1024,)), (2, (896, 1024)), ("all", tuple(range(128, 1025, 128)))]
)
def test_so_many_checkpoints_are_kept(keep, steps):
    given = {} if keep is None else {"keep_checkpoints": keep}
    small = {**QUIET, "num_envs": 2, "total_steps": 1024, "checkpoint_every": 128, "num_minibatches": 1}
    assert surefoot.train("CartPole-v1", **small, **given).checkpoints.steps == steps


def test_the_best_stays_whatever_is_kept():
    small = {**QUIET, "total_steps": 2048, "eval_every": 256, "selection_episodes": 2, "checkpoint_every": 256}
    run = surefoot.train("CartPole-v1", **small, keep_checkpoints=1)
    assert set(run.checkpoints.steps) == {run.checkpoints.best, run.checkpoints.latest}


@pytest.mark.parametrize("keep", [0, "some", 1.5])
def test_a_wrong_number_of_checkpoints_is_refused(keep):
    with pytest.raises(UsageError, match="keep_checkpoints"):
        resolve("CartPole-v1", overrides={"keep_checkpoints": keep})


def test_training_in_python_shows_header_and_result_as_the_command_line_does(capsys):
    run = surefoot.train("CartPole-v1", **SMALL, name="shown")
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("shown: ppo on CartPole-v1, seed 1, preset none")
    assert f"run {run.path}" in lines
    assert "trained 512 steps in" in out
    assert "greedy return" in out
    assert f"run:     {run.path}" in lines
    assert f"next:    surefoot video '{run.path}' --untrained" in out or "next:    surefoot video" in out
    assert not set(out) & {"\x1b", "\r"}
    surefoot.resume(run, total_steps=768)
    out = capsys.readouterr().out
    assert out.startswith("resuming ")
    assert "trained 768 steps in" in out


def test_in_a_notebook_the_lines_are_plain(monkeypatch):
    """A notebook's stdout is no terminal, and has no file descriptor."""

    class Cell(io.StringIO):
        def fileno(self):
            raise io.UnsupportedOperation("fileno")

    cell = Cell()
    monkeypatch.setattr("sys.stdout", cell)
    surefoot.train("CartPole-v1", **SMALL)
    text = cell.getvalue()
    assert "ppo on CartPole-v1" in text
    assert "trained 512 steps" in text
    assert not set(text) & {"\x1b", "\r"}


def test_without_progress_nothing_is_shown(capfd):
    class Warn(surefoot.Callback):
        def on_update(self, trainer, metrics):
            trainer.warn("loud")

    run = surefoot.train("CartPole-v1", **QUIET, callbacks=[Warn()])
    surefoot.resume(run, total_steps=768, progress=False)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert "loud" in run.directory.log.read_text()
