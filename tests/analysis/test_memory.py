"""What the diagnosis remembers: little, enough to tell a trend from chance, and the same after a resume."""

import json
import random

import pytest

from surefoot.analysis.memory import MOST, EnvTally, Memory, Series, memory_shape
from surefoot.analysis.rule import Facts
from surefoot.analysis.watch import Watch, first_cause


def series(values):
    found = Series()
    for value in values:
        found.add(value)
    return found


def test_a_series_stays_small_and_keeps_its_mean():
    found = series(range(64_000))
    assert len(found.values) < MOST
    assert sum(found.values) / len(found.values) == pytest.approx(32_000, rel=0.02)
    assert found.values == sorted(found.values)


@pytest.mark.parametrize("count", [40, 700])
def test_a_trend_is_told_from_chance(count):
    by_chance = 0
    for seed in range(20):
        noise = random.Random(seed)
        drawn = [noise.gauss(20.0, 3.0) for _ in range(count)]
        by_chance += series(drawn).trend != 0
        assert series(value + 40.0 * at / count for at, value in enumerate(drawn)).trend == 1
        assert series(value - 40.0 * at / count for at, value in enumerate(drawn)).trend == -1
    assert by_chance <= 2
    assert series([1.0] * 9).trend is None
    assert series([8.0] * 100).trend == 0


def test_a_start_with_both_kinds_of_episodes_hides_no_progress():
    assert series([-30.0, 90.0, -30.0, 80.0, *[94.0 + 0.1 * (at % 5) for at in range(40)]]).trend == 1


def test_a_lucky_start_is_no_fall():
    assert series([-373.0, -500.0, -500.0, -420.0, *[-500.0] * 40]).trend == 0
    assert series([-371.0, -373.0, -374.0, -372.0, *[-500.0] * 40]).trend == -1


def test_the_tally_of_all_but_one():
    one, every = EnvTally(), EnvTally()
    for ret in (1.0, 3.0):
        one.add(ret, 10)
        every.add(ret, 10)
    for ret in (7.0, 7.0):
        every.add(ret, 20)
    assert (one.mean, one.spread) == (2.0, 1.0)
    assert (every.without(one).mean, every.without(one).spread) == (7.0, 0.0)


def test_a_resumed_watch_says_what_an_unbroken_one_says():
    facts = Facts("Env-v0", 2, 10_000, settings={"learning_rate": 0.1})
    rows = [{"step": 100 * at, "update": at, "episodes": at, "kl": 0.01 if at < 40 else 3.0} for at in range(1, 101)]
    whole, broken = Watch(facts), Watch(facts)
    for row in rows:
        whole.add_episodes([(0, 5.0, 10)], row["step"])
        whole.look(row)
        state = json.loads(json.dumps(broken.state_dict()))
        broken.state_shape().check(state)
        broken = Watch(facts)
        broken.load_state_dict(state)
        broken.add_episodes([(0, 5.0, 10)], row["step"])
        broken.look(row)
    assert whole.said
    assert broken.said == whole.said
    assert broken.state_dict() == whole.state_dict()


def test_a_state_without_a_memory_loads():
    """As checkpoints of 0.1.0 have it."""
    watch = Watch(Facts("Env-v0", 2, 10_000))
    state = {"said": [], "held": {}, "last": [5, 1], "ended": 5, "first": 1.0}
    watch.state_shape().check(state)
    watch.load_state_dict(state)
    memory_shape().check(json.loads(json.dumps(Memory().state_dict())))


def test_the_first_cause_is_the_first_rule_not_the_first_warning():
    said = [{"name": name, "step": 1, "message": name} for name in ("outside_space", "collapsed", "updates_too_large")]
    assert first_cause(said)["name"] == "updates_too_large"
    assert first_cause(said[:1]) is None
