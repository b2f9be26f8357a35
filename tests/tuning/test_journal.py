"""Optuna's journal: what it survives, and what is made of a damaged one."""

from pathlib import Path

import pytest

from surefoot.errors import CheckpointError
from surefoot.ranges import among, between
from surefoot.tuning.journal import Journal, repair
from surefoot.tuning.space import Dimension

pytest.importorskip("optuna")

SPACE = {
    "activation": Dimension("activation", among("tanh", "relu")),
    "gamma": Dimension("gamma", among(0.9, 0.99)),
    "learning_rate": Dimension("learning_rate", between(1e-4, 1e-2, log=True)),
    "num_epochs": Dimension("num_epochs", between(3, 20), whole=True),
}
FILE = Path("journal.log")


def journal(seed=0):
    return Journal(FILE, SPACE, seed)


def drawn(number, between_draws=lambda: None):
    found = journal()
    values = []
    for _ in range(number):
        values.append(found.ask(0).values)
        between_draws()
    return values


def test_a_trial_comes_back_as_it_was():
    first = journal()
    positions = {"activation": "relu", "gamma": 1, "learning_rate": 3e-4, "num_epochs": 10}
    trial = first.ask(2, "default", positions)
    assert trial.values == {"activation": "relu", "gamma": 0.99, "learning_rate": 3e-4, "num_epochs": 10}
    first.report(0, 0, [1.0, 2.0], 0.5, 1e-4)
    (again,) = journal().trials()
    assert (again.values, again.round, again.origin, again.state) == (trial.values, 2, "default", "open")
    assert again.scores == {0: [1.0, 2.0]}
    assert again.seconds_per_step == 1e-4
    first.report(0, 0, [9.0, 9.0], 9.0, 1.0)  # told before
    first.close(0, "complete", 0.5)
    first.close(0, "failed", why="told before")
    (done,) = journal().trials()
    assert (done.state, done.scores) == ("complete", {0: [1.0, 2.0]})


def test_the_trials_of_a_tune_that_is_killed_between_them_are_those_of_one_that_is_not():
    whole = drawn(4)
    FILE.unlink()
    pieces = [journal().ask(0).values for _ in range(4)]
    assert pieces == whole
    FILE.unlink()
    assert journal(seed=1).ask(0).values != whole[0]


def test_a_failed_trial_is_pruned_and_keeps_its_error():
    found = journal()
    found.ask(0)
    found.close(0, "failed", why="the simulator broke")
    assert journal().trials()[0].state == "failed"


def test_a_trial_that_was_being_drawn_during_a_kill_is_forgotten():
    first = journal()
    first.ask(0)
    first._study.ask(fixed_distributions=first._distributions)  # and no round yet
    assert [trial.number for trial in journal().trials()] == [0]
    assert journal().ask(1).number == 2


def test_half_a_line_and_a_lock_that_a_kill_left_are_removed():
    journal().ask(0)
    whole = FILE.read_bytes()
    with FILE.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    Path(f"{FILE}.lock").symlink_to(FILE)
    repair(FILE)
    assert FILE.read_bytes() == whole
    assert not Path(f"{FILE}.lock").is_symlink()
    assert journal().ask(0).number == 1


@pytest.mark.parametrize(
    "line", ["no json", "[]", '{"op_code": 99, "worker_id": "x"}', '{"op_code": 4, "worker_id": "x"}', "null"]
)
def test_a_damaged_journal_is_our_error(line):
    journal().ask(0)
    text = FILE.read_text(encoding="utf-8").splitlines()
    FILE.write_text("\n".join([text[0], line, *text[1:]]) + "\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"journal\.log is damaged .* begin anew in another folder"):
        journal().trials()


def test_importances_need_enough_trials_that_differ():
    found = journal()
    for _ in range(12):
        found.ask(0)
    rates = {trial.number: float(trial.values["learning_rate"]) for trial in found.trials()}
    assert found.importances(dict(list(rates.items())[:5])) == {}
    assert found.importances(dict.fromkeys(rates, 1.0)) == {}
    shares = found.importances(rates)
    assert max(shares, key=shares.get) == "learning_rate"
