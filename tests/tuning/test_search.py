"""Whole tunes with a pool that only pretends: what is tried, dropped, continued, checked and claimed."""

import json
import tomllib
from pathlib import Path

import pytest

from surefoot.errors import SurefootError, UsageError
from surefoot.training.config.resolve import resolve
from surefoot.training.life.signals import Interrupted
from tests.tuning.pretending import Clock, Killed, PretendedPool, a_wish, peak, pretend, settings_of

pytest.importorskip("optuna")


def trained(pool, part):
    """(trial or method, settings) of every run that was started in this part of the tune."""
    found = []
    for words in pool.commands:
        place = next((word for word in words if word.startswith("--run-dir=")), "")
        if f"/{part}/" in place:
            found.append((place.split("/ppo/")[1].rsplit("-s", 1)[0], settings_of(words)))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A tune of 20 trials that finds something."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tune"))
        pool, said = PretendedPool(), []
        return pool, pretend(pool, said=said), said, Path("tune").absolute()


def test_the_default_is_the_first_trial_and_the_shipped_preset_the_second(finished):
    pool, *_ = finished
    first = [settings for name, settings in trained(pool, "trials") if name == "trial-000-2000"]
    assert len(first) == 3
    assert {(run["learning_rate"], run["gamma"], run["activation"]) for run in first} == {("0.0003", "0.99", "tanh")}
    second = dict(trained(pool, "trials"))["trial-001-2000"]
    assert second["gamma"] == str(resolve("CartPole-v1", "ppo").algorithm.gamma)


def test_rungs_have_more_steps_and_seeds_of_their_own_and_keep_a_third(finished):
    """Rounds of 9, 5, 3 and 3 trials, which begin on rungs 1, 2, 3 and 1. Default and preset always reach the last."""
    pool, *_ = finished
    seeds, trials = {}, {}
    for name, settings in trained(pool, "trials"):
        seeds.setdefault(settings["total_steps"], set()).add(int(settings["seed"]))
        trials.setdefault(settings["total_steps"], set()).add(name)
    assert seeds == {"2000": {0, 1, 2}, "6000": {3, 4, 5, 6}, "18000": {7, 8, 9, 10, 11}}
    assert {steps: len(names) for steps, names in trials.items()} == {
        "2000": 9 + 3,
        "6000": (3 + 2) + 5 + 1,
        "18000": (1 + 2) + 2 + 3 + 1,
    }
    assert {"trial-000-18000", "trial-001-18000"} <= trials["18000"]


def test_what_did_best_is_checked_on_seeds_that_the_search_never_saw(finished):
    pool, tuned, _, _ = finished
    checked = trained(pool, "validation")
    assert len(checked) == 15
    assert {int(settings["seed"]) for _, settings in checked} == set(range(50_000, 50_005))
    assert {name.split("-")[0] for name, _ in checked} == {"trial", "default", "preset"}
    assert {settings["total_steps"] for _, settings in checked} == {"18000"}
    assert all("eval_episodes" not in settings for _, settings in checked)
    assert 1e-3 < tuned.settings["learning_rate"] < 1e-2
    assert tuned.better
    assert tuned.scores["tuned"].low > tuned.scores["default"].high


def test_the_preset_gives_the_settings_that_were_checked_whatever_the_env_has(finished):
    *_, folder = finished
    preset = folder / "preset.toml"
    found = resolve("CartPole-v1", "ppo", "auto", preset)
    values = json.loads((folder / "result.json").read_text())["settings"]
    assert {name: found.flat()[name] for name in values} == values
    assert found.algorithm.num_epochs == resolve("CartPole-v1", "ppo", "none").algorithm.num_epochs
    assert found.run.total_steps == tomllib.loads(preset.read_text())["total_steps"] == 18_000
    assert "better than the default" in preset.read_text().splitlines()[1]
    assert not (folder / "candidate.toml").exists()


def test_it_says_what_mattered_and_draws_it(finished):
    _, tuned, said, folder = finished
    assert next(iter(tuned.importances)) == "learning_rate"
    assert sum(tuned.importances.values()) == pytest.approx(1.0)
    assert any(line.startswith("learning_rate") for line in said)
    pytest.importorskip("matplotlib")
    assert "<svg" in (folder / "importance.svg").read_text()


def test_a_finished_tune_tells_its_result_again_and_trains_nothing(finished, monkeypatch):
    _, tuned, _, folder = finished
    monkeypatch.chdir(folder.parent)
    again = PretendedPool()
    repeated = pretend(again)
    assert again.commands == []
    assert (repeated.settings, repeated.scores, repeated.verdict) == (tuned.settings, tuned.scores, tuned.verdict)


@pytest.mark.slow
def test_a_larger_budget_goes_on_where_a_smaller_one_ended():
    first, second = PretendedPool(), PretendedPool()
    pretend(first, a_wish(budget="9-trials"))
    tuned = pretend(second, a_wish(budget="12-trials"))
    assert tuned.trials == 12
    assert {name for name, _ in trained(second, "trials") if name.endswith("-6000")} == {
        f"trial-{number:03d}-6000" for number in (9, 10, 11)
    }


def test_other_settings_in_the_same_folder_are_refused():
    pretend(PretendedPool(), a_wish(budget="2-trials"))
    with pytest.raises(UsageError, match=r"begun with other settings \(seeds\); continue it with `surefoot tune tune`"):
        pretend(PretendedPool(), a_wish(budget="2-trials", seeds=4))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("after", [0, 1, 14, 27, 30, 40, 60, 92, 100, 106])
def test_a_tune_that_is_killed_goes_on_to_the_same_end(after, finished):
    pool, tuned, _, _ = finished
    killed = PretendedPool()
    killed.dies_after = after
    with pytest.raises(Killed):
        pretend(killed)
    with open("tune/journal.log", "ab") as journal:
        journal.write(b'{"op_code": 6, "torn')
    Path("tune/journal.log.lock").symlink_to("journal.log")
    going_on = PretendedPool()
    result = pretend(going_on)
    assert (result.settings, result.scores, result.trials) == (tuned.settings, tuned.scores, tuned.trials)
    started = [names(words) for words in (*killed.commands, *going_on.commands) if words[0] == "train"]
    assert set(started) == set(map(names, pool.commands))  # the same trials with the same seeds
    assert len(started) <= len(pool.commands) + 1  # and none again, apart from one that had left no trace


def names(words):
    return next(word.split("/tune/")[1] for word in words if word.startswith("--run-dir="))


def test_ctrl_c_saves_and_says_how_to_go_on():
    pool = PretendedPool()
    pool.interrupts_after = 5
    with pytest.raises(Interrupted, match=r"every run is saved. To continue:\nsurefoot tune tune") as stopped:
        pretend(pool)
    assert stopped.value.exit_code == 130
    again = PretendedPool()
    assert pretend(again).better
    assert again.commands[0][0] == "resume"


def test_noise_is_not_called_an_improvement():
    tuned = pretend(PretendedPool(score=lambda settings: 0.0, spread=10.0))
    assert not tuned.better
    assert tuned.preset is None
    assert "no improvement found" in tuned.verdict
    assert not Path("tune/preset.toml").exists()
    if tuned.settings:
        assert "no improvement found" in Path("tune/candidate.toml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_default_that_nothing_beats_is_kept():
    def default_is_best(settings):
        return 100.0 if float(settings.get("learning_rate", 3e-4)) == 3e-4 else 0.0

    tuned = pretend(PretendedPool(score=default_is_best), a_wish(search={"learning_rate": "0.0001..0.01:log"}))
    assert not tuned.better
    assert tuned.settings == {} or tuned.scores["tuned"].value > 90  # the shipped preset may be as good
    assert tuned.preset is None


@pytest.mark.slow
def test_what_learns_fast_and_is_lost_later_is_not_preferred_to_the_default():
    """With few steps the default is the worst, with all of them the best."""

    def late(settings):
        ours, whole = float(settings.get("learning_rate", 3e-4)) == 3e-4, settings["total_steps"] == "18000"
        return (100.0 if whole else -100.0) if ours else 0.0

    tuned = pretend(PretendedPool(score=late), a_wish(search={"learning_rate": "0.0001..0.01:log"}))
    assert tuned.settings == {}
    assert "no trial did better than the default" in tuned.verdict


@pytest.mark.slow
def test_a_trial_that_fails_is_dropped_and_the_others_go_on():
    def breaks(settings):
        return "the simulator broke" if settings.get("activation") == "relu" else ""

    said = []
    tuned = pretend(PretendedPool(fails=breaks), said=said)
    assert tuned.better
    assert tuned.settings["activation"] == "tanh"
    assert any(line.startswith("trial ") and "seed 0: the simulator broke" in line for line in said)


def test_ten_failures_in_a_row_end_the_tune_with_the_error():
    pool = PretendedPool(fails=lambda settings: "the simulator broke")
    with pytest.raises(SurefootError, match="10 trials in a row failed, the last one with: seed 3: the simulator"):
        pretend(pool)
    nine = {f"trial-{number:03d}-2000" for number in range(9)}
    assert {name for name, _ in trained(pool, "trials")} == {*nine, "trial-009-6000"}


@pytest.mark.slow
def test_a_full_disk_ends_the_tune_at_once_and_loses_nothing():
    pool = PretendedPool(fails=lambda settings: "cannot save: No space left on device")
    with pytest.raises(SurefootError, match="free some space, then continue: surefoot tune tune"):
        pretend(pool)
    assert pretend(PretendedPool()).better


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr("surefoot.tuning.budget.perf_counter", found)
    monkeypatch.setattr("surefoot.sweep.progress.perf_counter", found)
    return found


def slow_pool(clock):
    """Two runs at a time, of 1,800 steps a second."""
    pool = PretendedPool(clock=clock)
    submit = pool.submit

    def timed(work):
        submit(work)
        pool.seconds = max(int(settings_of(one.words)["total_steps"]) for one in pool.running) / 1800

    pool.submit = timed
    return pool


@pytest.mark.parametrize("seconds", [400, pytest.param(900, marks=pytest.mark.slow)])
def test_a_tune_ends_within_its_time_with_the_check_included(seconds, clock):
    begun = clock.now
    tuned = pretend(slow_pool(clock), a_wish(budget=f"{seconds}s"))
    assert len(tuned.scores) == 3
    assert seconds * 0.5 < clock.now - begun <= seconds
    assert tuned.seconds == pytest.approx(clock.now - begun, abs=0.1)


@pytest.mark.slow
def test_the_time_before_a_kill_counts(clock):
    killed = slow_pool(clock)
    killed.dies_after = 60
    begun = clock.now
    with pytest.raises(Killed):
        pretend(killed, a_wish(budget="400s"))
    spent = clock.now - begun
    clock.now += 10_000  # nobody worked on it
    begun = clock.now
    pretend(slow_pool(clock), a_wish(budget="400s"))
    assert spent + clock.now - begun <= 400


def test_too_little_time_for_a_single_trial_is_said(clock):
    with pytest.raises(SurefootError, match=r"too small for a single trial.*fewer than 18,000 steps"):
        pretend(slow_pool(clock), a_wish(budget="3s"))


@pytest.mark.slow
def test_one_round_on_many_slots_is_larger():
    pool = PretendedPool(slots=40)
    pretend(pool, a_wish(budget="30-trials"))
    assert {name for name, _ in trained(pool, "trials")[:36]} == {f"trial-{number:03d}-2000" for number in range(12)}


def test_peak_is_where_it_should_be():
    assert peak({"learning_rate": "0.003"}) > peak({"learning_rate": "0.001"}) > peak({})
