"""Carrying out a plan with a pool that only pretends: what is started, skipped, continued and reported."""

import json
import os
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from surefoot import __version__
from surefoot.cli.main import main
from surefoot.errors import BusyError, CheckpointError, UsageError
from surefoot.runs.files import write_json
from surefoot.sweep.carry_out import carry_out, track
from surefoot.sweep.display import Lines, Silent, counts, live_row, make_watcher, outcome, short_names
from surefoot.sweep.folder import SweepFolder, usual_folder
from surefoot.sweep.grid import Grid, read_grids
from surefoot.sweep.plan import expand
from surefoot.sweep.pool import Ended
from surefoot.sweep.progress import seconds_left
from surefoot.training.config.toml_files import to_toml

GRID = Grid(envs=("CartPole-v1",), seeds=(0, 1, 2), settings={"total_steps": 2000})


class PretendedPool:
    """Every command ends at the next poll, as `outcomes` says: {name: (exit code, status)}."""

    def __init__(self, slots=2, outcomes=(), stops=()):
        self.slots, self.outcomes, self.stops_at = slots, dict(outcomes), dict(stops)
        self.works, self.running, self.stopped, self.most = [], [], [], 0

    def submit(self, work):
        assert len(self.running) < self.slots
        self.works.append(work)
        self.running.append(work)
        self.most = max(self.most, len(self.running))
        if work.name in self.stops_at:
            os.kill(os.getpid(), self.stops_at[work.name])

    def poll(self, seconds):
        ended, self.running = self.running, []
        return [self._end(work) for work in ended]

    def _end(self, work):
        code, state = self.outcomes.get(work.name, (0, "done"))
        work.output.parent.mkdir(parents=True, exist_ok=True)
        work.output.write_text(f"hello\nsurefoot: exit {code} of {work.name}\n", encoding="utf-8")
        if state is not None:
            write_status(work.output.parent, state)
        return Ended(work.name, code)

    def stop(self, *, at_once=False):
        self.stopped.append(at_once)

    def save(self):
        self.saved = True

    def close(self):
        pass


def write_status(folder, state):
    write_json(folder / "manifest.json", {})
    write_json(folder / "status.json", {"state": state, "eval_return": 12.5, "step": 1234})


@pytest.fixture
def folder():
    return SweepFolder(Path("out"))


def existing(folder, run, state, **changes):
    """A run that is there already."""
    directory = folder.directory(run).path
    directory.mkdir(parents=True)
    write_status(directory, state)
    text = to_toml(run.point.config).replace('seed = "none"', f"seed = {run.seed}")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (directory / "config.toml").write_text(text, encoding="utf-8")


def test_what_is_done_is_skipped_what_was_cut_off_goes_on_and_the_rest_starts(folder):
    plan = expand([GRID])
    existing(folder, plan.runs[0], "done")
    existing(folder, plan.runs[1], "failed")
    runs, pool = track(folder, plan), PretendedPool()
    assert carry_out(runs, pool, Silent(), ["--trust"]) == 0
    continued, started = (work.words for work in pool.works)
    assert continued == ("resume", str(folder.directory(plan.runs[1]).path.absolute()), "--trust")
    assert started[:2] == ("train", "CartPole-v1")
    assert started[-2] == f"--run-dir={folder.directory(plan.runs[2]).path.absolute()}"
    assert [run.stage for run in runs] == ["done"] * 3
    assert pool.most == 2


def test_a_run_that_crashes_is_reported_and_the_others_go_on(folder):
    plan = expand([GRID])
    outcomes = {plan.runs[0].name: (1, "failed"), plan.runs[1].name: (-9, None)}
    runs, out = track(folder, plan), StringIO()
    carry_out(runs, PretendedPool(1, outcomes), Lines(out))
    assert [run.stage for run in runs] == ["failed", "failed", "done"]
    assert runs[0].error == f"exit 1 of {plan.runs[0].name}"
    assert runs[1].error == "killed by SIGKILL (out of memory?)"
    said = out.getvalue().splitlines()
    assert said[0].startswith(f"[1/3] {plan.runs[0].name} failed: exit 1")
    assert said[2].startswith(f"[3/3] {plan.runs[2].name} done in 0:00, return 12.5")
    assert counts(runs) == "1 of 3 runs done, 2 failed"


def test_a_run_that_ends_well_without_being_done_is_unfinished(folder):
    """`--max-time`."""
    plan = expand([GRID])
    runs = track(folder, plan)
    carry_out(runs, PretendedPool(3, {plan.runs[0].name: (0, "interrupted")}), Silent())
    assert [run.stage for run in runs] == ["unfinished", "done", "done"]
    assert outcome(runs[0]).endswith("stopped at step 1,234 and saved")
    assert outcome(replace(runs[0], step=0)).endswith(" stopped before its first update")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_pool_and_starts_nothing_more(folder, number):
    plan = expand([GRID])
    first = plan.runs[0].name
    pool = PretendedPool(1, {first: (128 + number, "interrupted")}, {first: number})
    runs, before = track(folder, plan), signal.getsignal(number)
    assert carry_out(runs, pool, Silent()) == number
    assert [work.name for work in pool.works] == [first]
    assert pool.stopped == [False]
    assert [run.stage for run in runs] == ["unfinished", "waiting", "waiting"]
    assert signal.getsignal(number) is before


def test_enough_stops_the_runs_under_way_and_starts_nothing_more(folder):
    """As when the time of a tune is up."""
    plan = expand([GRID])
    pool = PretendedPool(1, {plan.runs[1].name: (0, "interrupted")})
    runs = track(folder, plan)
    ended = iter([False, True])
    assert carry_out(runs, pool, Silent(), enough=lambda: next(ended)) == 0
    assert pool.stopped == [False]
    assert [run.stage for run in runs] == ["done", "unfinished", "waiting"]


def test_a_run_of_other_settings_in_the_folder_is_refused(folder):
    plan = expand([GRID])
    existing(folder, plan.runs[1], "done", **{"total_steps = 2000": "total_steps = 4000"})
    with pytest.raises(UsageError, match="total_steps=4000 instead of 2000"):
        track(folder, plan)


def test_a_damaged_run_fails_alone(folder):
    plan = expand([GRID])
    existing(folder, plan.runs[1], "done")
    (folder.directory(plan.runs[1]).path / "status.json").write_text("{", encoding="utf-8")
    runs = track(folder, plan)
    carry_out(runs, PretendedPool(), Silent())
    assert [run.stage for run in runs] == ["done", "failed", "done"]
    assert "status.json is damaged" in runs[1].error


def test_a_folder_remembers_every_grid_once(folder):
    held = folder.hold()
    other = Grid(envs=("CartPole-v1",), seeds=(7,), vary={"gamma": ("0.9", "0.8")})
    for grids in ([GRID], [GRID], [other, GRID]):
        folder.remember(grids)
    assert read_grids(folder.plan) == folder.read() == [GRID, other]
    assert folder.version() == __version__
    held.release()


def test_a_folder_serves_one_sweep_at_a_time(folder):
    held = folder.hold()
    with pytest.raises(BusyError, match=rf"out is in use by pid {os.getpid()} on .*another folder \(--out\)"):
        folder.hold()
    held.release()
    folder.hold().release()


def test_places_that_are_no_folders_of_a_sweep(folder):
    with pytest.raises(UsageError, match=r"no sweep\.toml"):
        folder.read()
    write_status(Path(), "done")
    with pytest.raises(UsageError, match="is a run"):
        SweepFolder(Path()).hold()
    Path("file").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        SweepFolder(Path("file/below")).hold()


def test_the_usual_folder_depends_on_envs_and_algorithms_alone():
    one = usual_folder([Grid(envs=("CartPole-v1", "ALE/Pong-v5"), algos=("ppo", "a2c"), seeds=(1,))])
    assert one == Path("runs/sweeps/CartPole-v1+ALE_Pong-v5_ppo+a2c")
    assert usual_folder([Grid(envs=("CartPole-v1", "ALE/Pong-v5"), algos=("ppo", "a2c"), vary={"gamma": (1,)})]) == one
    long = usual_folder([Grid(envs=tuple(f"Environment{n}-v1" for n in range(30)))])
    assert len(long.name) < 100


def test_the_time_left_follows_from_the_steps_per_second(folder):
    plan = expand([GRID])
    runs = track(folder, plan)
    assert seconds_left(runs, 1) is None
    runs[0].stage, runs[0].step, runs[0].seconds = "done", 2000, 20.0
    runs[1].stage, runs[1].step, runs[1].seconds = "running", 500, 5.0
    assert seconds_left(runs, 1) == pytest.approx(35.0)
    assert seconds_left(runs, 2) == pytest.approx(20.0)  # the last one cannot be shared
    runs[1].first_step, runs[1].seconds = 400, 1.0  # it was resumed at step 400
    assert seconds_left(runs, 1) == pytest.approx(35.0)


def test_rows_of_a_running_run_are_read_as_they_come(folder):
    (one, *_) = track(folder, expand([GRID]))
    one.start()
    one.look()
    assert one.step == 0
    one.directory.path.mkdir(parents=True)
    for step in (100, 200):
        with open(one.directory.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "episode_return": step / 10}) + "\n")
        one.look()
        assert (one.step, one.episode_return) == (step, step / 10)


def test_no_progress_is_shown_where_none_is_wanted():
    assert type(make_watcher(StringIO(), quiet=True)) is Silent
    assert type(make_watcher(None)) is Silent
    assert type(make_watcher(StringIO())) is Lines


def test_a_lost_pool_is_an_error_and_its_runs_have_failed(folder):
    class Lost(PretendedPool):
        def poll(self, seconds):
            raise CheckpointError("lost")

    runs = track(folder, expand([GRID]))
    with pytest.raises(CheckpointError):
        carry_out(runs, Lost(), Silent())
    assert [run.stage for run in runs] == ["failed", "failed", "waiting"]


def test_the_live_rows_name_what_differs_and_keep_the_return_in_sight(folder):
    shared = "eval_episodes=20,total_steps=60000"
    names = [f"CartPole-v1/ppo/eval_episodes=20,gamma={gamma},total_steps=60000-s{i}" for i, gamma in enumerate("89")]
    assert list(short_names(names).values()) == ["CartPole-v1/ppo/gamma=8-s0", "CartPole-v1/ppo/gamma=9-s1"]
    assert list(short_names([f"CartPole-v1/ppo/{shared}-s0"]).values()) == ["CartPole-v1/ppo/s0"]
    assert short_names(["CartPole-v1/ppo/s0"]) == {"CartPole-v1/ppo/s0": "CartPole-v1/ppo/s0"}

    plan = expand([GRID])
    run = track(folder, plan)[0]
    run.step, run.episode_return = 500, 123.4
    row = live_row(run, "CartPole-v1/ppo/" + "x" * 80 + "-s0", 60)
    assert len(row) <= 60
    assert row.startswith("   25%  CartPole-v1")
    assert row.endswith("-s0  return 123.4")


def test_a_quiet_sweep_still_says_what_failed(folder, capsys):
    plan = expand([Grid(envs=("CartPole-v1",), seeds=(0,))])
    existing(folder, plan.runs[0], "done")
    (folder.directory(plan.runs[0]).path / "status.json").write_text("{", encoding="utf-8")
    assert main(["sweep", "--env", "CartPole-v1", "--seeds", "0", "--out", "out", "--quiet"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "status.json is damaged" in said.err
