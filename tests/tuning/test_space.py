"""Which settings are searched, and where."""

import pytest

from surefoot.algorithms import ALGORITHMS
from surefoot.errors import UsageError
from surefoot.ranges import Among, Between, among, between
from surefoot.training.config.presets import list_presets, load_preset
from surefoot.training.config.resolve import all_options, resolve
from surefoot.tuning.space import Dimension, decode, encode, parse_search, space_of, with_short_rollouts


def usual(algo):
    return resolve("CartPole-v1", algo, "none").flat()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_has_a_space_that_contains_its_defaults_and_can_be_written_down(algo):
    space = space_of(algo, (), usual(algo), {})
    assert {"learning_rate", "gamma", "num_envs"} <= set(space)
    defaults = {name: usual(algo)[name] for name in space}
    assert decode(space, encode(space, defaults)) == defaults
    written = {name: dimension.describe() for name, dimension in space.items()}
    assert space_of(algo, (), usual(algo), written, only=True) == space


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_ends_of_every_range_are_values_of_the_setting(algo):
    for name, dimension in space_of(algo, (), usual(algo), {}).items():
        found = dimension.range
        for value in (found.low, found.high) if isinstance(found, Between) else found.values:
            resolve("CartPole-v1", algo, "none", None, {name: value})


def test_most_of_what_the_presets_of_ppo_set_is_searched():
    space = space_of("ppo", (), usual("ppo"), {})
    left_out = {
        name
        for preset in list_presets()
        if preset.endswith("/ppo") and "-v" in preset
        for name in load_preset(preset)
        if name not in space
    }
    assert not left_out & {"learning_rate", "gamma", "gae_lambda", "entropy_coef", "num_epochs", "normalize_rewards"}


def test_what_is_fixed_is_not_searched_and_what_is_given_replaces_what_is_declared():
    given = {"learning_rate": "1e-3..2e-3", "hidden_sizes": "64,64;256,256", "value_coef": "0.25,0.5,1"}
    space = space_of("ppo", {"gamma"}, usual("ppo"), given)
    assert "gamma" not in space
    assert space["learning_rate"].range == between(1e-3, 2e-3, log=True)  # as the declared range
    assert space["hidden_sizes"].range == among((64, 64), (256, 256))
    assert space["hidden_sizes"].value("256+256") == (256, 256)
    assert space["hidden_sizes"].describe() == "64,64;256,256"
    assert space["value_coef"].value(2) == 1.0
    assert space_of("ppo", (), usual("ppo"), {"clip_ratio": "0.01..0.3"})["clip_ratio"].range.log
    assert not space_of("ppo", (), usual("ppo"), {"clip_ratio": "0.01..0.3:linear"})["clip_ratio"].range.log


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gama": "0.9,0.99"}, "did you mean 'gamma'"),
        ({"seed": "1,2"}, "not a setting of ppo to search"),
        ({"total_steps": "1k,2k"}, "not a setting of ppo to search"),
        ({"num_epochs": "3,4"}, "both fixed and searched"),
        ({"gamma": "0.9"}, "give two values or more"),
        ({"gamma": "0.9,1.5"}, "gamma=1.5 is too large"),
        ({"gamma": "0.99..0.9"}, "the first number must be the lower one"),
        ({"activation": "tanh..relu"}, "only numbers have a range; list the values"),
        ({"activation": "tanh,rleu"}, "did you mean 'relu'"),
        ({"entropy_coef": "0..0.1:log"}, "begins above zero"),
        ({"learning_rate": "small..large"}, "is not a number"),
    ],
)
def test_wrong_ranges_are_explained(given, says):
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        space_of("ppo", {"num_epochs"}, usual("ppo"), given)


@pytest.mark.parametrize(
    ("words", "says"),
    [(["gamma"], "write it as"), (["=3"], "write it as"), (["gamma=0.9,1", "--gamma=1,0.9"], "names gamma twice")],
)
def test_wrong_words_of_search(words, says):
    with pytest.raises(UsageError, match=says):
        parse_search(words)


def test_nothing_to_search():
    with pytest.raises(UsageError, match="nothing to search"):
        space_of("ppo", set(all_options("ppo")), usual("ppo"), {})


def test_long_rollouts_are_left_out_where_there_are_few_steps():
    space = space_of("ppo", (), usual("ppo"), {})
    short = with_short_rollouts(space, usual("ppo"), 10_000, ())
    assert short["num_envs"].range.values[-1] * short["rollout_length"].range.values[-1] * 4 <= 10_000
    assert short["num_envs"].range.values[-1] >= 8  # the default is in it
    assert short["rollout_length"].range.values[-1] >= 128
    assert with_short_rollouts(space, usual("ppo"), 10**6, ()) == space
    asked = with_short_rollouts(space, usual("ppo"), 10, {"num_envs", "rollout_length"})
    assert asked == space


def test_positions_of_values_that_are_not_in_the_space_are_the_nearest():
    assert Dimension("gamma", among(0.9, 0.99)).position(0.98) == 1
    assert Dimension("x", between(1.0, 2.0)).position(5.0) == 2.0
    assert encode({"a": Dimension("a", among("tanh", "relu")), "b": Dimension("b", among(1, 2))}, {"a": "elu"}) == {}


def test_numbers_have_three_digits_and_stay_in_their_range():
    assert Dimension("x", between(1e-4, 1e-2, log=True)).value(0.0012345) == 0.00123
    assert Dimension("x", between(0.12345, 0.2)).value(0.12346) == 0.12345
    assert Dimension("x", between(3, 20), whole=True).value(7) == 7


def test_a_range_is_widened_to_contain_a_default():
    assert among(32, 64).including(5) == Among((5, 32, 64))
    assert between(1.0, 2.0).including(0.5) == Between(0.5, 2.0)
    assert between(1.0, 2.0, log=True).including(0.0) == Between(1.0, 2.0, True)
    assert among("a", "b").including(None) == Among(("a", "b", None))
