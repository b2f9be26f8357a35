"""Rows of metrics: what some updates have and others do not."""

import numpy as np
import pytest

from surefoot.engine.contract import Several, Table
from surefoot.engine.episodes import Episode, EpisodeColumns
from surefoot.training.loop.journal import Journal


def test_columns_of_some_updates_are_means_over_those():
    journal = Journal(10)
    journal.add({"kl": 1.0, "ratio_p5": 0.5, "ratio_max": 2.0}, [])
    journal.add({"kl": 3.0}, [])
    journal.add({"kl": 2.0, "ratio_p5": 0.7, "ratio_max": 5.0}, [])
    row = journal.row(10)
    assert (row["kl"], row["ratio_p5"], row["ratio_max"]) == (2.0, pytest.approx(0.6), 5.0)
    journal.add({"kl": 1.0}, [])
    assert "ratio_p5" not in journal.row(20)


def test_the_noise_scale_is_a_quotient_of_sums():
    journal = Journal(10)
    journal.add({"gradient_noise": 10.0, "gradient_signal": -1.0}, [])
    journal.add({"gradient_noise": 30.0, "gradient_signal": 3.0}, [])
    row = journal.row(10)
    assert row["gradient_noise_scale"] == 20.0
    assert "gradient_noise" not in row
    journal.add({"gradient_noise": 10.0, "gradient_signal": -1.0}, [])
    assert journal.row(20)["gradient_noise_scale"] is None  # nothing but noise


def test_how_many_episodes_the_clock_ended():
    journal = Journal(10)
    ends = [Episode(0, 1.0, 5, truncated=True), Episode(1, 1.0, 3), Episode(0, 1.0, 5, truncated=True)]
    journal.add({"kl": 1.0}, ends)
    assert journal.row(10)["time_limit_fraction"] == pytest.approx(2 / 3)
    journal.add({"kl": 1.0}, [])
    assert journal.row(20)["time_limit_fraction"] is None


def test_episodes_of_earlier_versions_are_read():
    journal = Journal(10)
    state = journal.state_dict() | {"finished": [{"env": 0, "ret": 1.0, "length": 2, "info": {}}]}
    journal.state_shape().check(state)
    journal.load_state_dict(state)
    journal.add({"kl": 1.0}, [])
    assert journal.row(10)["time_limit_fraction"] == 0.0


def test_a_row_from_columns_has_the_bits_of_one_from_episodes():
    returns, lengths = np.random.default_rng(0).normal(size=250), np.arange(250)
    columns = EpisodeColumns(lengths % 7, returns, lengths, lengths % 3 == 0)
    rows, states = [], []
    for episodes in (columns, list(columns)):
        journal = Journal(10)
        for _ in range(2):
            journal.add({"kl": 1.0}, episodes)
        states.append(journal.state_dict())
        again = Journal(10)
        again.load_state_dict(journal.state_dict())
        rows += [journal.row(10), again.row(10)]
    assert all(row == rows[0] for row in rows)
    assert states[0] == states[1]
    assert states[0]["recent"] == [float(ret) for ret in returns[-100:]]


def test_several_updates_at_once_are_those_one_by_one():
    """Some metrics are measured in some updates only, between the others."""
    names = [("kl", "rate"), ("kl", "ratio", "rate"), ("kl", "rate")]
    values = np.array([[0.1, 3.0, np.nan], [0.2, 2.0, 0.3], [0.7, 1.0, np.nan]])
    table = Table(("kl", "rate", "ratio"), values, names)
    ended = EpisodeColumns(*(np.array(x) for x in ([1, 0, 2], [5.0, 7.0, 9.0], [5, 7, 9], [False, True, False])))
    number, one, several = np.array([0, 2, 2]), Journal(10), Journal(10)
    several.add_several(Several(4, 3, ended, number, [table]))
    for update, order in enumerate(names):
        metrics = {name: values[update, table.names.index(name)] for name in order}
        own = number == update
        one.add(metrics, EpisodeColumns(*(x[own] for x in (ended.env, ended.ret, ended.length, ended.truncated))))
    assert list(several.latest) == list(one.latest)
    assert several.state_dict() == one.state_dict()
    assert [list(row) for row in several.state_dict()["metrics"]] == [list(order) for order in names]
    rows = [list(journal.row(12).items()) for journal in (one, several)]
    assert [name for name, _ in rows[0] if name in names[1]] == ["kl", "rate", "ratio"]
    assert rows[0] == rows[1]
    assert several.next_row == 20
    assert not several.open
