"""An env or a callback that forks and lets both copies return: one run goes on, the copy ends and touches nothing."""

import json
import os
import time
from pathlib import Path

import pytest

import surefoot
from surefoot.cli.main import main
from tests.faults import envs
from tests.faults.runs import TINY, cli, command, copy, opened, same
from tests.faults.test_signals import before_call

ENVS = Path(envs.__file__)
SHORT = {"total_steps": 320, "eval_every": None}


def words_for(*more, **kwargs):
    return [*command("run", env=f"{ENVS}:Forks", **SHORT), f"--env-kwargs={json.dumps(kwargs)}", *more]


def children():
    """How the copies ended."""
    return [int(line) for line in Path("children").read_text(encoding="utf-8").split()]


def assert_one_run():
    run = opened(Path("run"))
    assert run.directory.read_status()["state"] == "done"
    assert run.result["total_steps"] == 320
    assert [row["step"] for row in run.metrics] == [96, 192, 288, 320]
    assert [path.name for path in Path().iterdir() if (path / "manifest.json").exists()] == ["run"]
    assert not run.directory.crash.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", ["step", "reset", "init", "close"])
def test_the_copy_of_a_training_ends_and_says_so_once(nursery, where):
    child = nursery.run(cli, words=words_for(where=where)).ended(0)
    assert set(children()) == {1}
    assert_one_run()
    assert child.err.count("surefoot: ") == child.err.count("is a fork of process") == len(children())
    assert child.out.count("trained 320 steps") == 1
    assert nursery.orphans() == []


@pytest.mark.parametrize("where", ["step", "reset", "init", "close"])
def test_a_copy_that_calls_sys_exit_ends_with_its_code_and_without_a_word(nursery, where):
    child = nursery.run(cli, words=words_for(where=where, leaves=True)).ended(0)
    assert set(children()) == {3}
    assert_one_run()
    assert child.err == ""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["step", "reset", "init"])
def test_the_copy_of_a_worker_ends_and_does_not_answer_in_its_place(nursery, where):
    child = nursery.run(cli, words=words_for("--workers=2", where=where)).ended(0)
    assert set(children()) == {1}
    assert_one_run()
    assert "is a fork of process" in child.err


@pytest.mark.slow
def test_the_copy_of_an_evaluation_ends(nursery, whole):
    settings = json.dumps({"where": "step", "at": 3})
    words = [*command("run", **SHORT), f"--eval-env={ENVS}:Forks", f"--eval-env-kwargs={settings}"]
    nursery.run(cli, words=words).ended(0)
    assert set(children()) == {1}
    assert_one_run()
    Path("children").unlink()
    child = nursery.run(cli, words=["eval", "run", "--episodes=2", "--trust"]).ended(0)
    assert set(children()) == {1}
    assert child.out.count("greedy return") == 1


def fork_in_a_callback(method):
    """In a child: train with a callback that forks at its first call of `method`."""

    class Forks(surefoot.Callback):
        pass

    def fork(callback, trainer, *_):
        if trainer.step and not Path("children").exists():
            Path("children").touch()
            if child := os.fork():
                Path("children").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), encoding="utf-8")

    setattr(Forks, method, fork)
    surefoot.train(**{**TINY, **SHORT}, run_dir="run", callbacks=[Forks()])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["on_rollout", "on_update", "on_log", "on_evaluation", "on_end", "on_exit"])
def test_the_copy_that_a_callback_makes_ends(nursery, method):
    nursery.run(fork_in_a_callback, method=method).ended(0)
    assert children() == [1]
    assert_one_run()


def with_helpers_that_live_on(words):
    """In a child: the command line; its env forks helpers, one in the middle of a save. They do not return."""

    def helper():
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)

    before_call(surefoot.training.trainer.Trainer, "_loop", helper)
    before_call(surefoot.training.loop.writing, "write_checkpoint", helper)
    return main(words)


def test_a_forked_helper_that_outlives_the_run_holds_neither_its_end_nor_its_lock(nursery, whole, tmp_path):
    path = tmp_path / "run"
    nursery.run(with_helpers_that_live_on, words=command(path), timeout=30).ended(0)
    helpers = nursery.orphans()
    try:
        assert len(helpers) == 2
        same(opened(path), whole)
        assert opened(path).directory.is_locked() is False
        same(opened(path), copy(whole, tmp_path / "copy"))
    finally:
        for pid in helpers:
            os.kill(pid, 9)
